"""Which examples a client trains on in a round, and in which batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.components.client_optimizers import SGD
from manyeyes.components.client_weighting import FedNovaWeighting
from manyeyes.components.validation import require_int
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import PERSONAL, SHARED
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import register


@register("batching", "epochs")
@dataclass(frozen=True)
class EpochBatching:
    """E passes over a client's examples, each in a new order; a large client draws `limit` of them anew each round.

    With `head`, so many passes before these move the personal layers alone, and these the others alone: FedRep.
    """

    epochs: int
    batch_size: int
    max_examples: int = 0  # 0: all
    head_epochs: int = 0

    def __post_init__(self) -> None:
        require_int("epochs", self.epochs, 1)
        require_int("batch", self.batch_size, 1)
        require_int("limit", self.max_examples, 0)
        require_int("head epochs", self.head_epochs, 0)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if self.head_epochs and algorithm.personal_layers is None:
            return "head epochs train the personal layers alone, and no layers are personal: name some"
        if self.head_epochs and not isinstance(algorithm.client_optimizer, SGD):
            return "the two parts of FedRep take steps of their own, which local Adam counts together: use local SGD"
        if self.head_epochs and (
            isinstance(algorithm.client_weighting, FedNovaWeighting)
            or (algorithm.correction and algorithm.correction.uploads)
        ):
            return "FedNova, SCAFFOLD and Mime-lite take every step to move every layer, and head epochs do not"
        return None

    def num_examples(self, num_held: int) -> int:
        return min(num_held, self.max_examples or num_held)

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        chosen = rng.choice(num_held, self.num_examples(num_held), replace=False)
        passes = padding(self.head_epochs + self.epochs, len(chosen), self.batch_size)
        for order in passes[:, : len(chosen)]:
            order[:] = chosen
            rng.shuffle(order)
        return passes.reshape(-1, self.batch_size)

    def phases(self, steps: int) -> Ints | None:
        alone = steps // (self.head_epochs + self.epochs) * self.head_epochs
        return np.repeat([PERSONAL, SHARED], [alone, steps - alone]) if self.head_epochs else None


@register("batching", "virtual_client")
@dataclass(frozen=True)
class VirtualClientBatching:
    """The same number of examples for every client: drawn without replacement if it holds so many, else with.

    The virtual clients of FedVC (Hsu et al. 2020, section 5.3).
    """

    virtual_client_size: int
    batch_size: int

    def __post_init__(self) -> None:
        require_int("examples", self.virtual_client_size, 1)
        require_int("batch", self.batch_size, 1)

    def num_examples(self, num_held: int) -> int:
        return self.virtual_client_size

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        rows = padding(1, self.virtual_client_size, self.batch_size)
        rows[0, : self.virtual_client_size] = rng.choice(
            num_held, self.virtual_client_size, replace=num_held < self.virtual_client_size
        )
        return rows.reshape(-1, self.batch_size)

    def phases(self, steps: int) -> None:
        return None


def padding(passes: int, length: int, batch: int) -> Ints:
    """-1 in whole batches, with room for so many examples in each pass."""
    return np.full((passes, -(-length // batch) * batch), -1, np.int64)
