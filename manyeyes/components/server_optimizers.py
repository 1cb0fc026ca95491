"""Server optimizers: they descend along the update g = theta_t - theta of the clients."""

import torch
from torch import Tensor

from manyeyes.components.client_optimizers import Schedule
from manyeyes.core.algorithm import Tensors
from manyeyes.core.registry import check_options, component, option, register

LR_HELP = "server learning rate"
SCHEDULE_HELP = "server learning rate over rounds"


@component("server_optimizer", "sgd")
class ServerSGD:
    """v <- momentum v + g, theta <- theta - lr v: FedAvg, and with momentum FedAvgM (Hsu et al. 2020, section 5.1)."""

    lr: float = option(1.0, LR_HELP, above=0)
    momentum: float = option(0.0, "server momentum (FedAvgM)", minimum=0, below=1)
    schedule: Schedule = option(Schedule, SCHEDULE_HELP)

    def init(self, theta: Tensor) -> Tensors:
        return {"velocity": torch.zeros_like(theta)} if self.momentum else {}

    def step(self, theta: Tensor, update: Tensor, state: Tensors, round: int) -> tuple[Tensor, Tensors]:
        lr = self.lr * self.schedule.factor(round)
        if not self.momentum:
            return theta - lr * update, state
        velocity = self.momentum * state["velocity"] + update
        return theta - lr * velocity, {"velocity": velocity}


@register("server_optimizer", "adagrad", variant="adagrad", beta1=0.0)
@register("server_optimizer", "yogi", variant="yogi")
@component("server_optimizer", "adam")
class AdaptiveServer:
    """m <- beta1 m + (1 - beta1) g, theta <- theta - lr m / (sqrt(v) + tau): Reddi et al. 2021, Algorithm 2.

    As there, v starts at tau^2 and nothing is corrected for bias. With `bias_correction`, m and v start at 0 and are
    divided by 1 - beta^t, as in Adam and in the released code of FLAIR.
    """

    variant: str = option("adam", "how v follows g^2: adam, yogi or adagrad", choices=("adam", "yogi", "adagrad"))
    lr: float = option(0.1, LR_HELP, above=0)
    beta1: float = option(0.9, "decay of the mean of updates", minimum=0, below=1)
    beta2: float = option(0.99, "decay of the mean of squared updates", minimum=0, below=1)
    tau: float = option(1e-3, "added to the root of the squared mean", above=0, maximum=1e6)
    bias_correction: bool = option(False, "correct for bias as Adam does; Reddi et al. do not")
    schedule: Schedule = option(Schedule, SCHEDULE_HELP)

    def __post_init__(self) -> None:
        check_options(self)
        if self.bias_correction and self.variant == "adagrad":
            raise ValueError("server_optimizer=adagrad keeps a sum, which has no bias: set bias_correction=false")

    def init(self, theta: Tensor) -> Tensors:
        initial_square = 0.0 if self.bias_correction else self.tau**2
        return {"mean": torch.zeros_like(theta), "square": torch.full_like(theta, initial_square)}

    def step(self, theta: Tensor, update: Tensor, state: Tensors, round: int) -> tuple[Tensor, Tensors]:
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * update
        square = self._second_moment(state["square"], update**2)
        direction, scale = mean, square
        if self.bias_correction:
            direction = mean / (1 - self.beta1 ** (round + 1))
            scale = square / (1 - self.beta2 ** (round + 1))
        lr = self.lr * self.schedule.factor(round)
        return theta - lr * direction / (scale.sqrt() + self.tau), {"mean": mean, "square": square}

    def _second_moment(self, square: Tensor, new: Tensor) -> Tensor:
        if self.variant == "adagrad":
            return square + new
        if self.variant == "yogi":
            return square - (1 - self.beta2) * new * torch.sign(square - new)
        return self.beta2 * square + (1 - self.beta2) * new
