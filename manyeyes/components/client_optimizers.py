"""How a client steps: pure functions of flat vectors [P], or of several side by side [K, P]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.components.numerics import l2_norms
from manyeyes.components.schedule import Schedule
from manyeyes.components.validation import require_at_least, require_fraction, require_positive
from manyeyes.core.engine import RoundContext
from manyeyes.core.plan import ALL, PERSONAL
from manyeyes.core.registry import register

OptState = tuple[Tensor, ...]


@register("client_optimizer", "sgd")
@dataclass(frozen=True)
class SGD:
    """theta <- theta - lr v, with v <- momentum v + g + weight_decay theta."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0  # bound on the norm of each gradient; 0: none
    persist_state: bool = False  # carry the momentum from round to round
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, self.max_grad_norm)
        require_fraction("momentum", self.momentum)

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


@register("client_optimizer", "adam")
@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma and Ba 2015); weight decay is added to the gradient."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    persist_state: bool = False
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, self.max_grad_norm)
        require_fraction("beta1", self.betas[0])
        require_fraction("beta2", self.betas[1])
        require_positive("eps", self.eps)

    def learning_rate(self, round: int) -> float:
        return self.lr * self.schedule.factor(round)

    def init(self, theta: Tensor) -> OptState:
        return torch.zeros_like(theta), torch.zeros_like(theta), theta.new_zeros(1)

    def step(self, theta: Tensor, grad: Tensor, opt_state: OptState, lr: float | Tensor) -> tuple[Tensor, OptState]:
        if self.weight_decay:
            grad = grad + self.weight_decay * theta
        beta1, beta2 = self.betas
        mean = beta1 * opt_state[0] + (1 - beta1) * grad
        square = beta2 * opt_state[1] + (1 - beta2) * grad**2
        count = opt_state[2] + 1
        size = (square / _grown(beta2, count)).sqrt() + self.eps
        return theta - lr * (mean / _grown(beta1, count)) / size, (mean, square, count)


def local_step(
    context: RoundContext,
    theta: Tensor,
    server_theta: Tensor,
    grad: Tensor,
    offset: Tensor | None,
    opt_state: OptState,
    phase: Tensor | None = None,
) -> tuple[Tensor, OptState]:
    """One local step of every algorithm: clip the gradient, correct it, step; `only` says what of the model moves."""
    moves = None if phase is None else trained_mask(context, phase)[..., : theta.shape[-1]]
    if moves is not None:
        grad = grad * moves
    if context.client_optimizer.max_grad_norm:
        length = l2_norms(grad)[..., None]
        grad = grad * (
            context.client_optimizer.max_grad_norm / length.clamp_min(context.client_optimizer.max_grad_norm)
        )
    if context.correction is not None:
        grad = corrected_grad(context, theta, server_theta, grad, offset)
    stepped, slid = context.client_optimizer.step(theta, grad, opt_state, context.lr)
    if moves is None:
        return stepped, slid
    stay = tuple(torch.where(moves, new, old) for new, old in zip(slid, opt_state, strict=True))
    return torch.where(moves, stepped, theta), stay


def trained_mask(context: RoundContext, phase: Tensor) -> Tensor:
    """True where a number moves in a step [W], or in the steps of several clients [K, W]."""
    if context.personal_mask is None:
        raise ValueError(
            "algorithm.draw moves a part of the model alone at some steps (its `only`), and no layer is personal: set "
            "algorithm.personal, or return None from `only`"
        )
    phase = phase[..., None]
    return (phase == ALL) | ((phase == PERSONAL) == context.personal_mask)


def corrected_grad(
    context: RoundContext, theta: Tensor, server_theta: Tensor, grad: Tensor, offset: Tensor | None
) -> Tensor:
    """scale * g + pull * (theta - theta_t) + shift; the last two on personal layers only where these are tied."""
    assert context.correction is not None, "there is no correction to apply"
    extra = torch.zeros_like(grad) if offset is None else offset
    if context.correction.proximal_strength:
        extra = extra + context.correction.proximal_strength * (theta - server_theta)
    if context.personal_mask is not None and not context.correct_personal_layers:
        extra = extra * ~context.personal_mask[: extra.shape[-1]]
    return context.correction.gradient_scale * grad + extra


def _grown(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, exact in float32 too where beta is near 1."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))


def _check(lr: float, weight_decay: float, clip: float) -> None:
    require_positive("lr", lr)
    require_at_least("weight decay", weight_decay, 0)
    require_at_least("clip", clip, 0)
