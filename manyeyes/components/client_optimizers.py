"""How a client steps: pure functions of flat vectors [P], or of several clients' at once [K, P]; and schedules."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyeyes.core.algorithm import SLOTS, Algorithm, OptState
from manyeyes.core.plan import ALL, PERSONAL
from manyeyes.core.registry import check_options, component, option
from manyeyes.core.state import RoundContext
from manyeyes.core.uplink import l2_norms


@dataclass(frozen=True)
class Schedule:
    """A factor for each round: a linear warm-up, then constant, or falling to `final` over `rounds` rounds.

    The first round already learns: a warm-up over n rounds starts at 1/n, not at 0.
    """

    kind: str = option("constant", "constant, polynomial or cosine", choices=("constant", "polynomial", "cosine"))
    rounds: int = option(0, "length of the schedule, warm-up included; 0: the whole run", minimum=0)
    warmup: int = option(0, "rounds of linear warm-up", minimum=0)
    final: float = option(0.0, "factor at the end of a polynomial or cosine schedule", minimum=0, maximum=1)
    power: float = option(1.0, "power of the polynomial", above=0)

    def __post_init__(self) -> None:
        check_options(self, "schedule")
        if self.kind != "constant" and self.rounds and self.rounds <= self.warmup:
            raise ValueError(
                f"schedule.rounds={self.rounds} of a {self.kind} schedule does not outlast schedule.warmup="
                f"{self.warmup}: lengthen the schedule or shorten the warm-up"
            )

    def factor(self, round: int) -> float:
        """Return the factor of round 0, 1, ..."""
        if round < self.warmup:
            return (round + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        if not self.rounds:
            raise ValueError("schedule.rounds=0 is the whole run: call resolve_schedules(algorithm, rounds) first")
        progress = min((round - self.warmup) / (self.rounds - self.warmup), 1.0)
        remaining = (1 + math.cos(math.pi * progress)) / 2 if self.kind == "cosine" else (1 - progress) ** self.power
        return self.final + (1 - self.final) * remaining


def resolve_schedules(algorithm: Algorithm, rounds: int) -> Algorithm:
    """Return the algorithm with every schedule of length 0 as long as the run."""
    for slot in SLOTS:
        component: Any = getattr(algorithm, slot)
        schedule = getattr(component, "schedule", None)
        if isinstance(schedule, Schedule) and schedule.kind != "constant" and not schedule.rounds:
            component = replace(component, schedule=replace(schedule, rounds=rounds))
            algorithm = replace(algorithm, **{slot: component})
    return algorithm


LR_HELP = "local learning rate"
WEIGHT_DECAY_HELP = "local weight decay, added to the gradient"
MAX_GRAD_NORM_HELP = "bound on the norm of each local gradient; 0: none"
PERSIST_STATE_HELP = "carry the local optimizer's state from round to round"
SCHEDULE_HELP = "local learning rate over rounds"


@component("client_optimizer", "sgd")
class SGD:
    """theta <- theta - lr v, with v <- momentum v + g + weight_decay theta."""

    lr: float = option(0.01, LR_HELP, above=0)
    momentum: float = option(0.0, "local momentum", minimum=0, below=1)
    weight_decay: float = option(0.0, WEIGHT_DECAY_HELP, minimum=0)
    max_grad_norm: float = option(0.0, MAX_GRAD_NORM_HELP, minimum=0)
    persist_state: bool = option(False, PERSIST_STATE_HELP)
    schedule: Schedule = option(Schedule, SCHEDULE_HELP)

    def learning_rate(self, round: int) -> float:
        return self.lr * self.schedule.factor(round)

    def init(self, theta: Tensor) -> OptState:
        return (torch.zeros_like(theta),) if self.momentum else ()

    def step(self, theta: Tensor, grad: Tensor, opt_state: OptState, lr: float | Tensor) -> tuple[Tensor, OptState]:
        if self.weight_decay:
            grad = grad + self.weight_decay * theta
        if not self.momentum:
            return theta - lr * grad, ()
        velocity = self.momentum * opt_state[0] + grad
        return theta - lr * velocity, (velocity,)


@component("client_optimizer", "adam")
class Adam:
    """Adam with bias correction (Kingma and Ba 2015)."""

    lr: float = option(0.001, LR_HELP, above=0)
    beta1: float = option(0.9, "decay of the mean of gradients", minimum=0, below=1)
    beta2: float = option(0.999, "decay of the mean of squared gradients", minimum=0, below=1)
    eps: float = option(1e-8, "added to the root of the squared mean", above=0)
    weight_decay: float = option(0.0, WEIGHT_DECAY_HELP, minimum=0)
    max_grad_norm: float = option(0.0, MAX_GRAD_NORM_HELP, minimum=0)
    persist_state: bool = option(False, PERSIST_STATE_HELP)
    schedule: Schedule = option(Schedule, SCHEDULE_HELP)

    def learning_rate(self, round: int) -> float:
        return self.lr * self.schedule.factor(round)

    def init(self, theta: Tensor) -> OptState:
        return torch.zeros_like(theta), torch.zeros_like(theta), theta.new_zeros(1)

    def step(self, theta: Tensor, grad: Tensor, opt_state: OptState, lr: float | Tensor) -> tuple[Tensor, OptState]:
        if self.weight_decay:
            grad = grad + self.weight_decay * theta
        mean = self.beta1 * opt_state[0] + (1 - self.beta1) * grad
        square = self.beta2 * opt_state[1] + (1 - self.beta2) * grad**2
        count = opt_state[2] + 1
        scale = (square / _bias_correction(self.beta2, count)).sqrt() + self.eps
        return theta - lr * (mean / _bias_correction(self.beta1, count)) / scale, (mean, square, count)


def local_step(
    context: RoundContext,
    theta: Tensor,
    server_theta: Tensor,
    grad: Tensor,
    offset: Tensor | None,
    opt_state: OptState | None,
    phase: Tensor | None = None,
) -> tuple[Tensor, OptState]:
    """Take one local step of any algorithm: clip the gradient, correct it, step.

    `opt_state` is None before the first step. `phase` says which part of the model trains in this step; the rest,
    optimizer state included, does not move.
    """
    optimizer = context.client_optimizer
    opt_state = optimizer.init(theta) if opt_state is None else opt_state
    mask = None if phase is None else trained_mask(context, phase)[..., : theta.shape[-1]]
    if mask is not None:
        grad = grad * mask
    if optimizer.max_grad_norm:
        norm = l2_norms(grad)[..., None]
        grad = grad * (optimizer.max_grad_norm / norm.clamp_min(optimizer.max_grad_norm))
    if context.correction is not None:
        grad = corrected_grad(context, theta, server_theta, grad, offset)
    new_theta, new_state = optimizer.step(theta, grad, opt_state, context.lr)
    if mask is None:
        return new_theta, new_state
    masked_state = tuple(torch.where(mask, new, old) for new, old in zip(new_state, opt_state, strict=True))
    return torch.where(mask, new_theta, theta), masked_state


def trained_mask(context: RoundContext, phase: Tensor) -> Tensor:
    """Return where the weights train in a step [W], or in the steps of several clients [K, W]."""
    if context.personal_mask is None:
        raise ValueError(
            "batching trains a part of the model alone in some steps (its `phases`), and no layer is personal: set "
            "personal_layers, or return None from `phases`."
        )
    phase = phase[..., None]
    return (phase == ALL) | ((phase == PERSONAL) == context.personal_mask)


def corrected_grad(
    context: RoundContext, theta: Tensor, server_theta: Tensor, grad: Tensor, offset: Tensor | None
) -> Tensor:
    """Return gradient_scale * g + proximal_strength * (theta - theta_t) + offset.

    The last two terms act on personal layers only with `correct_personal_layers`.
    """
    assert context.correction is not None, "corrected_grad is called only with a correction"
    terms = torch.zeros_like(grad) if offset is None else offset
    if context.correction.proximal_strength:
        terms = terms + context.correction.proximal_strength * (theta - server_theta)
    if context.personal_mask is not None and not context.correct_personal_layers:
        terms = terms * ~context.personal_mask[: terms.shape[-1]]
    return context.correction.gradient_scale * grad + terms


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """Return 1 - beta^count, exact in float32 also where beta is near 1."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))
