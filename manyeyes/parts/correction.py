"""What is added to each local gradient g: scale * g + pull * (theta - theta_t) + shift."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.algorithm import Algorithm
from manyeyes.parts.local import SGD
from manyeyes.parts.require import fraction, positive
from manyeyes.parts.server import ServerSGD
from manyeyes.population import Population


@dataclass(frozen=True)
class Proximal:
    """FedProx: a pull of strength mu back to the server's weights (Li et al. 2020)."""

    pull: float
    scale = 1.0
    whole = False
    reports = False

    def __post_init__(self) -> None:
        positive("proximal strength", self.pull)

    def start(self, theta: Tensor) -> None:
        return None

    def shift(self, shared: Tensor | None, own: Tensor | None) -> None:
        return None

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[None, None]:
        return None, None

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> None:
        return None


@dataclass(frozen=True)
class ControlVariates:
    """SCAFFOLD: c - c_k, with c_k the client's mean gradient (Karimireddy et al. 2020, Algorithm 1, option II)."""

    scale = 1.0
    pull = 0.0
    whole = False
    reports = True

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.local, SGD) or algorithm.local.momentum:
            return (
                "SCAFFOLD reads a client's mean gradient off its steps, which only plain SGD allows: set momentum to 0"
            )
        return None

    def start(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor:
        assert shared is not None
        return shared if own is None else shared - own

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """c_k <- c_k - c + (theta_t - theta) / (steps * lr); the change is reported. A rate of 0 tells nothing new."""
        assert shared is not None
        change = update / distance - shared if distance else torch.zeros_like(shared)
        return (change if own is None else own + change), change

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> Tensor:
        """c <- c + (1 / N) sum of changes."""
        assert shared is not None and reports is not None
        return shared + reports / users


@dataclass(frozen=True)
class ServerMomentum:
    """Mime-lite with momentum: every local step is (1 - beta) g + beta m, with m the server's, fixed for the round.

    After it, m <- beta m + (1 - beta) times the mean of the clients' whole gradients at theta_t (Karimireddy et al.
    2021, "Breaking the centralized barrier", Algorithm 1).
    """

    beta: float = 0.9
    pull = 0.0
    whole = True
    reports = True

    def __post_init__(self) -> None:
        fraction("Mime's beta", self.beta)

    @property
    def scale(self) -> float:
        return 1 - self.beta

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.local, SGD) or algorithm.local.momentum:
            return "Mime-lite brings its own momentum: use local SGD with momentum 0"
        if not isinstance(algorithm.server, ServerSGD) or algorithm.server.momentum:
            return "Mime-lite applies its momentum in the clients: use server SGD with momentum 0"
        if algorithm.personal is not None:
            return "Mime-lite's momentum lives with the server and personal layers do not: choose one of them"
        return None

    def start(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor:
        assert shared is not None
        return self.beta * shared

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[None, Tensor]:
        assert gradient is not None
        return None, gradient

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> Tensor:
        assert shared is not None and reports is not None
        return self.beta * shared + (1 - self.beta) * reports / kept
