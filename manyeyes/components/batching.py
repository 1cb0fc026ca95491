"""Which examples a client trains on in a round, and in which batches."""

import numpy as np

from manyeyes.components.client_optimizers import SGD
from manyeyes.components.weighting import FedNovaWeighting
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import PERSONAL, SHARED
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import component, option


@component("batching", "epochs")
class EpochBatching:
    """Passes over a client's examples, each in a new random order.

    With `max_examples`, a larger client draws that many of its examples in each round. With `head_epochs`, that many
    passes train only the personal layers first, and the `epochs` passes then train only the others (FedRep).
    """

    epochs: int = option(1, "passes over a client's examples per round", minimum=1)
    batch_size: int = option(64, "examples per local step", minimum=1)
    max_examples: int = option(0, "at most this many of a client's examples, drawn again each round; 0: all", minimum=0)
    head_epochs: int = option(0, "FedRep: passes that train only the personal layers, before the others", minimum=0)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if not self.head_epochs:
            return None
        if algorithm.personal_layers is None:
            return "head_epochs train only the personal layers, and no layer is personal: set personal_layers"
        if not isinstance(algorithm.client_optimizer, SGD):
            return "head_epochs need client_optimizer=sgd: Adam would count the steps of both phases together"
        if isinstance(algorithm.client_weighting, FedNovaWeighting):
            return "client_weighting=fednova assumes that every step trains every layer: set head_epochs=0"
        if algorithm.correction is not None and algorithm.correction.uploads:
            name = type(algorithm.correction).__name__
            return f"correction={name} assumes that every step trains every layer: set head_epochs=0"
        return None

    def num_examples(self, num_held: int) -> int:
        return min(num_held, self.max_examples or num_held)

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        selected = rng.choice(num_held, self.num_examples(num_held), replace=False)
        epochs_EN = np.tile(selected, (self.head_epochs + self.epochs, 1))
        for order_N in epochs_EN:
            rng.shuffle(order_N)
        return in_batches(epochs_EN, self.batch_size)

    def phases(self, num_steps: int) -> Ints | None:
        if not self.head_epochs:
            return None
        head_steps = num_steps // (self.head_epochs + self.epochs) * self.head_epochs
        return np.repeat([PERSONAL, SHARED], [head_steps, num_steps - head_steps])


@component("batching", "virtual_client")
class VirtualClientBatching:
    """The same number of examples for every client: the virtual clients of FedVC (Hsu et al. 2020, section 5.3).

    They are drawn without replacement by clients that hold enough examples, and with replacement by the others.
    """

    virtual_client_size: int = option(256, "FedVC: examples of every client per round", minimum=1)
    batch_size: int = option(64, "examples per local step", minimum=1)

    def num_examples(self, num_held: int) -> int:
        return self.virtual_client_size

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        with_replacement = num_held < self.virtual_client_size
        selected = rng.choice(num_held, self.virtual_client_size, replace=with_replacement)
        return in_batches(selected[None], self.batch_size)

    def phases(self, num_steps: int) -> None:
        return None


def in_batches(epochs_EN: Ints, batch_size: int) -> Ints:
    """Return the batches of all epochs; -1 pads the last one of each epoch."""
    padding = (0, -epochs_EN.shape[1] % batch_size)
    return np.pad(epochs_EN, ((0, 0), padding), constant_values=-1).reshape(-1, batch_size)
