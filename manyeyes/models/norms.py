"""Norms: group norm, batch norm, and batch norm with fixed statistics; and the exchange of one for another."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models.fast.group_norm import FusedGroupNorm

NORMS = ("group", "frozen_batch", "batch")

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm2d with fixed statistics: y = weight (x - mean) / sqrt(var + eps) + bias, in train and eval alike."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.register_parameter("weight", nn.Parameter(torch.ones(channels)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(channels)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        # The kernel of BatchNorm2d in eval mode, so that the outputs are bit-equal to it.
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def extra_repr(self) -> str:
        return f"{len(self.running_mean)}, eps={self.eps}, affine={self.weight is not None}"


def norm_relu(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + around)."""
    if isinstance(norm, FusedGroupNorm):
        return norm(x, residual, low=0.0)
    y: Tensor = norm(x)
    return F.relu(y if residual is None else y + residual, inplace=True)


def group_count(channels: int, wanted: int) -> int:
    """The largest divisor of `channels` that is at most `wanted`."""
    if wanted < 1:
        raise ValueError(f"The number of norm groups is {wanted}; give at least 1.")
    return next(count for count in range(min(wanted, channels), 0, -1) if channels % count == 0)


def norm_layer(norm: str, groups: int) -> Norm:
    """From a number of channels to a norm of the kind named; `groups` is what a group norm aims at."""
    if norm == "group":
        return lambda channels: nn.GroupNorm(group_count(channels, groups), channels)
    if norm == "frozen_batch":
        return FrozenBatchNorm2d
    if norm == "batch":
        return nn.BatchNorm2d
    raise ValueError(f"Norm {norm!r} is not known; choose one of {', '.join(NORMS)}.")


def freeze_norms(module: nn.Module) -> nn.Module:
    """The module with every BatchNorm2d made a FrozenBatchNorm2d, in place: the function of eval mode, exactly."""

    def frozen(name: str, norm: nn.BatchNorm2d) -> nn.Module:
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError(f"BatchNorm layer {name!r} keeps no running statistics to freeze; use group_norms.")
        new = FrozenBatchNorm2d(norm.num_features, norm.eps, norm.affine)
        new.weight, new.bias = norm.weight, norm.bias
        new.running_mean, new.running_var = norm.running_mean, norm.running_var
        return new

    return _exchange_batch_norms(module, frozen)


def group_norms(module: nn.Module, groups: int) -> nn.Module:
    """The module with every BatchNorm2d made a GroupNorm, in place: weight and bias are kept, statistics dropped."""

    def grouped(name: str, norm: nn.BatchNorm2d) -> nn.Module:
        new = nn.GroupNorm(group_count(norm.num_features, groups), norm.num_features, norm.eps, norm.affine)
        new.weight, new.bias = norm.weight, norm.bias
        return new

    return _exchange_batch_norms(module, grouped)


def _exchange_batch_norms(module: nn.Module, exchange: Callable[[str, nn.BatchNorm2d], nn.Module]) -> nn.Module:
    # All are made before any is put in place, so that a refusal leaves the module as it was.
    made: dict[nn.Module | None, nn.Module] = {
        part: _with_followers(name, part, exchange(name, part)).train(part.training)
        for name, part in module.named_modules()
        if isinstance(part, nn.BatchNorm2d)
    }
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children() would list a shared child once only
            if child in made:
                setattr(parent, name, made[child])
    return made.get(module, module)


def _with_followers(name: str, old: nn.BatchNorm2d, new: nn.Module) -> nn.Module:
    """The new norm, then what the old one did after normalising (timm's BatchNormAct2d: dropout, activation)."""
    if type(old).forward is nn.BatchNorm2d.forward:
        return new
    followers = [child for child in (getattr(old, "drop", None), getattr(old, "act", None)) if child is not None]
    if not followers:
        raise ValueError(f"Norm layer {name!r} is a {type(old).__name__}, not understood; exchange it by hand.")
    return nn.Sequential(new, *followers)
