"""Models of each client's own: trained next to the shared one, or made from it before it is evaluated."""

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
from manyeyes.core.registry import option, register

ALL_LAYERS = MatchingLayers(("*",))


@register("personal_model", "ditto")
@dataclass(frozen=True)
class Ditto:
    """v_k <- v_k - lr (g(v_k) + lam (v_k - theta_t)); v_k is never sent (Li et al. 2021, Algorithm 1)."""

    lam: float = option(0.1, "Ditto's lambda: how strongly a personal model is tied to the server's")
    personal_layers = ALL_LAYERS

    def __post_init__(self) -> None:
        require_positive("personal_model.lam", self.lam)

    @property
    def correction(self) -> ProximalTerm:
        return ProximalTerm(self.lam)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.personal_layers is not None:
            return "personal_model=ditto gives each client a whole model: set personal_layers=none"
        if isinstance(algorithm.sampler, Centralized):
            return "personal_model=ditto needs several clients: choose a sampler other than centralized"
        if algorithm.adaptation is not None:
            return "personal_model=ditto is evaluated with the personal models: set adaptation=none"
        return None


@register("adaptation", "finetune")
@dataclass(frozen=True)
class FineTune:
    """Epochs over the client's own training examples, with its local optimizer, before each evaluation."""

    epochs: int = option(1, "epochs of fine-tuning before the model is evaluated")

    def __post_init__(self) -> None:
        require_int("adaptation.epochs", self.epochs, 1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if isinstance(algorithm.sampler, Centralized):
            return "adaptation=finetune needs several clients: choose a sampler other than centralized"
        return None

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            algorithm,
            batching=EpochBatching(self.epochs, algorithm.batching.batch_size),
            client_weighting=WeightUniformly(),
            example_weighting=None,
            correction=None,
            personal_layers=ALL_LAYERS,
            privacy=None,
            personal_model=None,
            adaptation=None,
        )
