"""What is added to each local gradient g: scale * g + pull * (theta - theta_t) + shift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.components.client_optimizers import SGD
from manyeyes.components.client_weighting import WeightUniformly
from manyeyes.components.server_optimizers import ServerSGD
from manyeyes.components.validation import require_fraction, require_positive
from manyeyes.core.algorithm import Algorithm, ServerStep
from manyeyes.core.population import Population
from manyeyes.core.registry import register


@register("correction", "proximal")
@dataclass(frozen=True)
class ProximalTerm:
    """FedProx: a pull of strength mu back to the server's weights (Li et al. 2020)."""

    mu: float = 0.01
    gradient_scale = 1.0
    needs_full_gradient = False
    uploads = False
    downloads = False

    def __post_init__(self) -> None:
        require_positive("correction.mu", self.mu)

    @property
    def proximal_strength(self) -> float:
        return self.mu

    def init(self, theta: Tensor) -> None:
        return None

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> None:
        return None

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[None, None]:
        return None, None

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[None, Tensor]:
        return None, step.theta_after


@register("correction", "scaffold")
@dataclass(frozen=True)
class ScaffoldCorrection:
    """SCAFFOLD: c - c_k, with c_k the client's mean gradient (Karimireddy et al. 2020, Algorithm 1, option II)."""

    gradient_scale = 1.0
    proximal_strength = 0.0
    needs_full_gradient = False
    uploads = True
    downloads = True

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.client_optimizer, SGD) or algorithm.client_optimizer.momentum:
            return (
                "SCAFFOLD reads a client's mean gradient off its steps, which only plain SGD allows: set momentum to 0"
            )
        return None

    def init(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor:
        assert correction_state is not None
        return correction_state if client_state is None else correction_state - client_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """c_k <- c_k - c + (theta_t - theta) / (steps * lr); the change is reported. A rate of 0 tells nothing new."""
        assert correction_state is not None
        change = update / steps_times_lr - correction_state if steps_times_lr else torch.zeros_like(correction_state)
        return (change if client_state is None else client_state + change), change

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor, Tensor]:
        """c <- c + (1 / N) sum of changes."""
        assert correction_state is not None and step.uploads is not None, "SCAFFOLD has state and uploads"
        return correction_state + step.uploads / step.num_clients, step.theta_after


@register("correction", "mimelite")
@dataclass(frozen=True)
class MimeLiteMomentum:
    """Mime-lite with momentum: every local step is (1 - beta) g + beta m, with m the server's, fixed for the round.

    After it, m <- beta m + (1 - beta) times the mean of the clients' whole gradients at theta_t (Karimireddy et al.
    2021, "Breaking the centralized barrier", Algorithm 1).
    """

    momentum: float = 0.9
    proximal_strength = 0.0
    needs_full_gradient = True
    uploads = True
    downloads = True

    def __post_init__(self) -> None:
        require_fraction("Mime's beta", self.momentum)

    @property
    def gradient_scale(self) -> float:
        return 1 - self.momentum

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.client_optimizer, SGD) or algorithm.client_optimizer.momentum:
            return "Mime-lite brings its own momentum: use local SGD with momentum 0"
        if not isinstance(algorithm.server_optimizer, ServerSGD) or algorithm.server_optimizer.momentum:
            return "Mime-lite applies its momentum in the clients: use server SGD with momentum 0"
        if algorithm.personal_layers is not None:
            return "Mime-lite's momentum lives with the server and personal layers do not: choose one of them"
        return None

    def init(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor:
        assert correction_state is not None
        return self.momentum * correction_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[None, Tensor]:
        assert full_gradient is not None
        return None, full_gradient

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor, Tensor]:
        assert correction_state is not None and step.uploads is not None, "Mime-lite has state and uploads"
        mean_gradient = step.uploads / step.num_accepted
        return self.momentum * correction_state + (1 - self.momentum) * mean_gradient, step.theta_after


@register("correction", "feddyn")
@dataclass(frozen=True)
class FedDynCorrection:
    """FedDyn (Acar et al. 2021, Algorithm 1): g + alpha (theta - theta_t) - h_k, with h_k <- h_k - alpha (theta_k - theta_t).

    The server keeps h <- h - alpha / N sum_k (theta_k - theta_t) and steps to mean_k theta_k - h / alpha.
    """

    alpha: float = 0.01
    gradient_scale = 1.0
    needs_full_gradient = False
    uploads = False
    downloads = False

    def __post_init__(self) -> None:
        require_positive("correction.alpha", self.alpha)

    @property
    def proximal_strength(self) -> float:
        return self.alpha

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.client_weighting != WeightUniformly():
            return "correction=feddyn averages clients uniformly: set client_weighting=uniform."
        if algorithm.server_optimizer != ServerSGD():
            return "correction=feddyn has a server step of its own: set server_optimizer=sgd with lr=1 and momentum=0."
        return None

    def init(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor | None:
        return None if client_state is None else -client_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor, None]:
        return self.alpha * update if client_state is None else client_state + self.alpha * update, None

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor, Tensor]:
        assert correction_state is not None, "FedDyn has server state"
        new_state = correction_state + self.alpha * step.num_accepted / step.num_clients * step.update
        return new_state, step.theta_after - new_state / self.alpha
