"""Which examples a client trains on in a round, and in which batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.parts.require import count
from manyeyes.population import Ints


@dataclass(frozen=True)
class Epochs:
    """E passes over a client's examples, each in a new order; a large client draws `limit` of them anew each round."""

    epochs: int
    batch: int
    limit: int = 0  # 0: all

    def __post_init__(self) -> None:
        count("epochs", self.epochs, 1)
        count("batch", self.batch, 1)
        count("limit", self.limit, 0)

    def size(self, held: int) -> int:
        return min(held, self.limit or held)

    def rows(self, held: int, rng: np.random.Generator) -> Ints:
        chosen = rng.choice(held, self.size(held), replace=False)
        return np.concatenate([batches(rng.permutation(chosen), self.batch) for _ in range(self.epochs)])


@dataclass(frozen=True)
class FixedSize:
    """The same number of examples for every client: drawn without replacement if it holds so many, else with.

    The virtual clients of FedVC (Hsu et al. 2020, section 5.3).
    """

    examples: int
    batch: int

    def __post_init__(self) -> None:
        count("examples", self.examples, 1)
        count("batch", self.batch, 1)

    def size(self, held: int) -> int:
        return self.examples

    def rows(self, held: int, rng: np.random.Generator) -> Ints:
        return batches(rng.choice(held, self.examples, replace=held < self.examples), self.batch)


def batches(order: Ints, batch: int) -> Ints:
    """Cut a sequence into rows of `batch`; -1 fills the last."""
    steps = -(-len(order) // batch)
    rows = np.full(steps * batch, -1, np.int64)
    rows[: len(order)] = order
    return rows.reshape(steps, batch)
