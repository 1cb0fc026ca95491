"""A model of each client's own: trained beside the shared one, or made from it before it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyeyes.algorithm import Algorithm
from manyeyes.parts.cohort import Pooled
from manyeyes.parts.correction import Proximal
from manyeyes.parts.drawing import Epochs
from manyeyes.parts.personal import Layers
from manyeyes.parts.require import count, positive
from manyeyes.parts.weighing import Equally
from manyeyes.population import Population

EVERYTHING = Layers(("*",))


@dataclass(frozen=True)
class Ditto:
    """v_k <- v_k - lr (g(v_k) + pull (v_k - theta_t)), which is never sent (Li et al. 2021, Algorithm 1)."""

    pull: float = 0.1
    personal = EVERYTHING

    def __post_init__(self) -> None:
        positive("Ditto's lambda", self.pull)

    @property
    def correct(self) -> Proximal:
        return Proximal(self.pull)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.personal is not None or isinstance(algorithm.cohort, Pooled):
            return "Ditto gives each client a whole model of its own: leave out personal layers and pooling"
        if algorithm.adapt is not None:
            return "Ditto's clients have models of their own to be evaluated with: leave out fine-tuning"
        return None


@dataclass(frozen=True)
class FineTune:
    """So many epochs over the client's own training part, with its local optimiser, before each evaluation."""

    epochs: int = 1

    def __post_init__(self) -> None:
        count("fine-tuning epochs", self.epochs, 1)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if isinstance(algorithm.cohort, Pooled):
            return "clients fine-tune, and centralised training has none: leave it out"
        return None

    def task(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            algorithm,
            draw=Epochs(self.epochs, algorithm.draw.batch),
            weigh=Equally(),
            reweigh=None,
            correct=None,
            personal=EVERYTHING,
            privacy=None,
            beside=None,
            adapt=None,
        )
