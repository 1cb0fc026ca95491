"""How the server steps, given the aggregated update g = theta_t - theta of the clients (so it descends along g)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.components.schedule import Schedule
from manyeyes.components.validation import require_fraction, require_positive
from manyeyes.core.registry import register

ServerState = dict[str, Tensor]


@register("server_optimizer", "sgd")
@dataclass(frozen=True)
class ServerSGD:
    """v <- beta v + g, theta <- theta - lr v: FedAvg, and with momentum FedAvgM (Hsu et al. 2020, section 5.1)."""

    lr: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        require_positive("server lr", self.lr)
        require_fraction("server momentum", self.momentum)

    def init(self, theta: Tensor) -> ServerState:
        return {"velocity": torch.zeros_like(theta)} if self.momentum else {}

    def step(self, theta: Tensor, update: Tensor, state: ServerState, round: int) -> tuple[Tensor, ServerState]:
        lr = self.lr * self.schedule.factor(round)
        if not self.momentum:
            return theta - lr * update, state
        velocity = self.momentum * state["velocity"] + update
        return theta - lr * velocity, {"velocity": velocity}


@register("server_optimizer", "adam", variant="adam")
@register("server_optimizer", "yogi", variant="yogi")
@register("server_optimizer", "adagrad", variant="adagrad", beta1=0.0)
@dataclass(frozen=True)
class AdaptiveServer:
    """m <- beta1 m + (1 - beta1) g, theta <- theta - lr m / (sqrt(v) + tau): Reddi et al. 2021, Algorithm 2.

    As there, v starts at tau^2 and nothing is corrected for bias. With `bias_correction`, m and v start at 0 and are
    divided by 1 - beta^t, as in Adam and in the released code of FLAIR.
    """

    variant: str = "adam"  # how v follows g^2: adam, yogi or adagrad
    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        if self.variant not in ("adam", "yogi", "adagrad"):
            raise ValueError(f"server rule {self.variant!r} is unknown: choose adam, yogi or adagrad")
        require_positive("server lr", self.lr)
        require_fraction("server beta1", self.beta1)
        require_fraction("server beta2", self.beta2)
        require_positive("server tau", self.tau)
        if self.bias_correction and self.variant == "adagrad":
            raise ValueError("bias correction is for averages, and adagrad keeps a sum: turn it off")

    def init(self, theta: Tensor) -> ServerState:
        first = 0.0 if self.bias_correction else self.tau**2
        return {"mean": torch.zeros_like(theta), "square": torch.full_like(theta, first)}

    def step(self, theta: Tensor, update: Tensor, state: ServerState, round: int) -> tuple[Tensor, ServerState]:
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * update
        square = self._second_moment(state["square"], update**2)
        direction, size = mean, square
        if self.bias_correction:
            direction = mean / (1 - self.beta1 ** (round + 1))
            size = square / (1 - self.beta2 ** (round + 1))
        lr = self.lr * self.schedule.factor(round)
        return theta - lr * direction / (size.sqrt() + self.tau), {"mean": mean, "square": square}

    def _second_moment(self, square: Tensor, new: Tensor) -> Tensor:
        if self.variant == "adagrad":
            return square + new
        if self.variant == "yogi":
            return square - (1 - self.beta2) * new * torch.sign(square - new)
        return self.beta2 * square + (1 - self.beta2) * new
