"""How a client steps: pure functions of flat vectors [P], or of several side by side [K, P]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.parts.length import lengths
from manyeyes.parts.require import at_least, fraction, positive
from manyeyes.parts.schedule import Schedule
from manyeyes.work import ALL, OWN, Work

Slots = tuple[Tensor, ...]


@dataclass(frozen=True)
class SGD:
    """theta <- theta - lr v, with v <- momentum v + g + weight_decay theta."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # bound on the norm of each gradient; 0: none
    keep: bool = False  # carry the momentum from round to round
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, self.clip)
        fraction("momentum", self.momentum)

    def rate(self, round: int) -> float:
        return self.lr * self.schedule.factor(round)

    def start(self, theta: Tensor) -> Slots:
        return (torch.zeros_like(theta),) if self.momentum else ()

    def step(self, theta: Tensor, gradient: Tensor, slots: Slots, lr: float | Tensor) -> tuple[Tensor, Slots]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * theta
        if not self.momentum:
            return theta - lr * gradient, ()
        velocity = self.momentum * slots[0] + gradient
        return theta - lr * velocity, (velocity,)


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma and Ba 2015); weight decay is added to the gradient."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    keep: bool = False
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, self.clip)
        fraction("beta1", self.betas[0])
        fraction("beta2", self.betas[1])
        positive("eps", self.eps)

    def rate(self, round: int) -> float:
        return self.lr * self.schedule.factor(round)

    def start(self, theta: Tensor) -> Slots:
        return torch.zeros_like(theta), torch.zeros_like(theta), theta.new_zeros(1)

    def step(self, theta: Tensor, gradient: Tensor, slots: Slots, lr: float | Tensor) -> tuple[Tensor, Slots]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * theta
        beta1, beta2 = self.betas
        mean = beta1 * slots[0] + (1 - beta1) * gradient
        square = beta2 * slots[1] + (1 - beta2) * gradient**2
        count = slots[2] + 1
        size = (square / _grown(beta2, count)).sqrt() + self.eps
        return theta - lr * (mean / _grown(beta1, count)) / size, (mean, square, count)


def descend(
    work: Work,
    theta: Tensor,
    server: Tensor,
    gradient: Tensor,
    shift: Tensor | None,
    slots: Slots,
    only: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """One local step of every algorithm: clip the gradient, correct it, step; `only` says what of the model moves."""
    moves = None if only is None else moving(work, only)[..., : theta.shape[-1]]
    if moves is not None:
        gradient = gradient * moves
    if work.local.clip:
        length = lengths(gradient)[..., None]
        gradient = gradient * (work.local.clip / length.clamp_min(work.local.clip))
    if work.correct is not None:
        gradient = corrected(work, theta, server, gradient, shift)
    stepped, slid = work.local.step(theta, gradient, slots, work.lr)
    if moves is None:
        return stepped, slid
    stay = tuple(torch.where(moves, new, old) for new, old in zip(slid, slots, strict=True))
    return torch.where(moves, stepped, theta), stay


def moving(work: Work, only: Tensor) -> Tensor:
    """True where a number moves in a step [W], or in the steps of several clients [K, W]."""
    if work.personal is None:
        raise ValueError(
            "algorithm.draw moves a part of the model alone at some steps (its `only`), and no layer is personal: set "
            "algorithm.personal, or return None from `only`"
        )
    only = only[..., None]
    return (only == ALL) | ((only == OWN) == work.personal)


def corrected(work: Work, theta: Tensor, server: Tensor, gradient: Tensor, shift: Tensor | None) -> Tensor:
    """scale * g + pull * (theta - theta_t) + shift; the last two on personal layers only where these are tied."""
    assert work.correct is not None, "there is no correction to apply"
    extra = torch.zeros_like(gradient) if shift is None else shift
    if work.correct.pull:
        extra = extra + work.correct.pull * (theta - server)
    if work.personal is not None and not work.tied:
        extra = extra * ~work.personal[: extra.shape[-1]]
    return work.correct.scale * gradient + extra


def _grown(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, exact in float32 too where beta is near 1."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))


def _check(lr: float, weight_decay: float, clip: float) -> None:
    positive("lr", lr)
    at_least("weight decay", weight_decay, 0)
    at_least("clip", clip, 0)
