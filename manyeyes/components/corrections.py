"""What is added to each local gradient g: gradient_scale * g + proximal_strength * (theta - theta_t) + offset."""

import torch
from torch import Tensor

from manyeyes.components.client_optimizers import SGD
from manyeyes.components.server_optimizers import ServerSGD
from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm, ServerStep, State
from manyeyes.core.population import Population
from manyeyes.core.registry import component, option


@component("correction", "proximal")
class ProximalTerm:
    """FedProx: a pull of strength mu back to the server's weights (Li et al. 2020)."""

    mu: float = option(0.01, "strength of the proximal term (FedProx)", above=0)
    gradient_scale = 1.0
    needs_full_gradient = uploads = downloads = False

    @property
    def proximal_strength(self) -> float:
        return self.mu

    def init(self, theta: Tensor) -> None:
        return None

    def offset(self, correction_state: State, client_state: State) -> None:
        return None

    def client_update(
        self, correction_state: State, client_state: State, update: Tensor, steps_times_lr: float, full_gradient: State
    ) -> tuple[None, None]:
        return None, None

    def server_update(self, correction_state: State, step: ServerStep) -> tuple[None, Tensor]:
        return None, step.theta_after


@component("correction", "scaffold")
class ScaffoldCorrection:
    """SCAFFOLD: c - c_k, with c_k the client's mean gradient (Karimireddy et al. 2020, Algorithm 1, option II)."""

    gradient_scale = 1.0
    proximal_strength = 0.0
    needs_full_gradient = False
    uploads = downloads = True

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.client_optimizer, SGD) or algorithm.client_optimizer.momentum:
            return (
                "correction=scaffold takes a client's mean gradient from its steps, which only plain SGD allows: "
                "set client_optimizer=sgd with momentum=0"
            )
        return None

    init = staticmethod(torch.zeros_like)

    def offset(self, correction_state: State, client_state: State) -> Tensor:
        assert correction_state is not None, "SCAFFOLD has a server control variate"
        return correction_state if client_state is None else correction_state - client_state

    def client_update(
        self, correction_state: State, client_state: State, update: Tensor, steps_times_lr: float, full_gradient: State
    ) -> tuple[Tensor, Tensor]:
        """Return c_k <- c_k - c + (theta_t - theta) / (steps * lr), and its change; with lr 0 nothing changes."""
        assert correction_state is not None, "SCAFFOLD has a server control variate"
        change = update / steps_times_lr - correction_state if steps_times_lr else torch.zeros_like(correction_state)
        return (change if client_state is None else client_state + change), change

    def server_update(self, correction_state: State, step: ServerStep) -> tuple[Tensor, Tensor]:
        """Return c <- c + (1 / N) sum of changes."""
        assert correction_state is not None and step.uploads is not None, "SCAFFOLD has state and uploads"
        return correction_state + step.uploads / step.num_clients, step.theta_after


@component("correction", "mimelite")
class MimeLiteMomentum:
    """Mime-lite with momentum: local steps along (1 - beta) g + beta m, with the server's m fixed for the round.

    After it, m <- beta m + (1 - beta) times the mean of the clients' full gradients at theta_t (Karimireddy et al.
    2021, "Breaking the centralized barrier", Algorithm 1).
    """

    momentum: float = option(0.9, "Mime-lite's momentum (beta)", minimum=0, below=1)
    proximal_strength = 0.0
    needs_full_gradient = uploads = downloads = True

    @property
    def gradient_scale(self) -> float:
        return 1 - self.momentum

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        client, server = algorithm.client_optimizer, algorithm.server_optimizer
        if not isinstance(client, SGD) or client.momentum:
            return "correction=mimelite brings its own momentum: set client_optimizer=sgd with momentum=0"
        if not isinstance(server, ServerSGD) or server.momentum:
            return "correction=mimelite applies its momentum in the clients: set server_optimizer=sgd with momentum=0"
        if algorithm.personal_layers is not None:
            return "correction=mimelite keeps its momentum at the server: set personal_layers=none"
        return None

    init = staticmethod(torch.zeros_like)

    def offset(self, correction_state: State, client_state: State) -> Tensor:
        assert correction_state is not None, "Mime-lite has server momentum"
        return self.momentum * correction_state

    def client_update(
        self, correction_state: State, client_state: State, update: Tensor, steps_times_lr: float, full_gradient: State
    ) -> tuple[None, Tensor]:
        assert full_gradient is not None, "Mime-lite needs the full gradient"
        return None, full_gradient

    def server_update(self, correction_state: State, step: ServerStep) -> tuple[Tensor, Tensor]:
        assert correction_state is not None and step.uploads is not None, "Mime-lite has state and uploads"
        new_momentum = self.momentum * correction_state + (1 - self.momentum) * step.uploads / step.num_accepted
        return new_momentum, step.theta_after


@component("correction", "feddyn")
class FedDynCorrection:
    """FedDyn (Acar et al. 2021, Algorithm 1): g + alpha (theta - theta_t) - h_k.

    A client keeps h_k <- h_k - alpha (theta_k - theta_t). The server keeps h <- h - alpha / N times the sum of
    theta_k - theta_t, and steps to the mean of theta_k - h / alpha.
    """

    alpha: float = option(0.01, "strength of FedDyn's regularization", above=0)
    gradient_scale = 1.0
    needs_full_gradient = uploads = downloads = False

    @property
    def proximal_strength(self) -> float:
        return self.alpha

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.client_weighting != WeightUniformly():
            return "correction=feddyn averages clients uniformly: set client_weighting=uniform (in Python: WeightUniformly())"
        if algorithm.server_optimizer != ServerSGD():
            return "correction=feddyn has a server step of its own: set server_optimizer=sgd with lr=1 and momentum=0"
        return None

    init = staticmethod(torch.zeros_like)

    def offset(self, correction_state: State, client_state: State) -> State:
        return None if client_state is None else -client_state

    def client_update(
        self, correction_state: State, client_state: State, update: Tensor, steps_times_lr: float, full_gradient: State
    ) -> tuple[Tensor, None]:
        return self.alpha * update if client_state is None else client_state + self.alpha * update, None

    def server_update(self, correction_state: State, step: ServerStep) -> tuple[Tensor, Tensor]:
        assert correction_state is not None, "FedDyn has server state"
        new_state = correction_state + self.alpha * step.num_accepted / step.num_clients * step.update
        return new_state, step.theta_after - new_state / self.alpha
