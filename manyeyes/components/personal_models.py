"""A model of each client's own: trained beside the shared one, or made from it before it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyeyes.components.batching import EpochBatching
from manyeyes.components.client_weighting import WeightUniformly
from manyeyes.components.corrections import ProximalTerm
from manyeyes.components.personal_layers import MatchingLayers
from manyeyes.components.samplers import Centralized
from manyeyes.components.validation import require_int, require_positive
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import register

EVERYTHING = MatchingLayers(("*",))


@register("personal_model", "ditto")
@dataclass(frozen=True)
class Ditto:
    """v_k <- v_k - lr (g(v_k) + pull (v_k - theta_t)), which is never sent (Li et al. 2021, Algorithm 1)."""

    lam: float = 0.1
    personal_layers = EVERYTHING

    def __post_init__(self) -> None:
        require_positive("Ditto's lambda", self.lam)

    @property
    def correction(self) -> ProximalTerm:
        return ProximalTerm(self.lam)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.personal_layers is not None or isinstance(algorithm.sampler, Centralized):
            return "Ditto gives each client a whole model of its own: leave out personal layers and pooling"
        if algorithm.adaptation is not None:
            return "Ditto's clients have models of their own to be evaluated with: leave out fine-tuning"
        return None


@register("adaptation", "finetune")
@dataclass(frozen=True)
class FineTune:
    """So many epochs over the client's own training part, with its local optimiser, before each evaluation."""

    epochs: int = 1

    def __post_init__(self) -> None:
        require_int("fine-tuning epochs", self.epochs, 1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if isinstance(algorithm.sampler, Centralized):
            return "clients fine-tune, and centralised training has none: leave it out"
        return None

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            algorithm,
            batching=EpochBatching(self.epochs, algorithm.batching.batch_size),
            client_weighting=WeightUniformly(),
            example_weighting=None,
            correction=None,
            personal_layers=EVERYTHING,
            privacy=None,
            personal_model=None,
            adaptation=None,
        )
