"""Which examples a client trains on in a round, and in which batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.algorithm import Algorithm
from manyeyes.parts.local import SGD
from manyeyes.parts.require import count
from manyeyes.parts.weighing import ByWalk
from manyeyes.population import Ints, Population
from manyeyes.work import OWN, SHARED


@dataclass(frozen=True)
class Epochs:
    """E passes over a client's examples, each in a new order; a large client draws `limit` of them anew each round.

    With `head`, so many passes before these move the personal layers alone, and these the others alone: FedRep.
    """

    epochs: int
    batch: int
    limit: int = 0  # 0: all
    head: int = 0

    def __post_init__(self) -> None:
        count("epochs", self.epochs, 1)
        count("batch", self.batch, 1)
        count("limit", self.limit, 0)
        count("head epochs", self.head, 0)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if self.head and algorithm.personal is None:
            return "head epochs train the personal layers alone, and no layers are personal: name some"
        if self.head and not isinstance(algorithm.local, SGD):
            return "the two parts of FedRep take steps of their own, which local Adam counts together: use local SGD"
        if self.head and (isinstance(algorithm.weigh, ByWalk) or (algorithm.correct and algorithm.correct.reports)):
            return "FedNova, SCAFFOLD and Mime-lite take every step to move every layer, and head epochs do not"
        return None

    def size(self, held: int) -> int:
        return min(held, self.limit or held)

    def rows(self, held: int, rng: np.random.Generator) -> Ints:
        chosen = rng.choice(held, self.size(held), replace=False)
        passes = padding(self.head + self.epochs, len(chosen), self.batch)
        for order in passes[:, : len(chosen)]:
            order[:] = chosen
            rng.shuffle(order)
        return passes.reshape(-1, self.batch)

    def only(self, steps: int) -> Ints | None:
        alone = steps // (self.head + self.epochs) * self.head
        return np.repeat([OWN, SHARED], [alone, steps - alone]) if self.head else None


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
        rows = padding(1, self.examples, self.batch)
        rows[0, : self.examples] = rng.choice(held, self.examples, replace=held < self.examples)
        return rows.reshape(-1, self.batch)

    def only(self, steps: int) -> None:
        return None


def padding(passes: int, length: int, batch: int) -> Ints:
    """-1 in whole batches, with room for so many examples in each pass."""
    return np.full((passes, -(-length // batch) * batch), -1, np.int64)
