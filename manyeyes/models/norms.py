"""Norms: group norm, batch norm, and batch norm with fixed statistics; and replacing one with another."""

from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import Bounds, check_value
from manyeyes.models.fast.group_norm import FusedGroupNorm

NORMS = ("group", "frozen", "live")
MAX_GROUPS, MIN_GROUP_CHANNELS = 32, 4  # of a GroupNorm in place of a BatchNorm (Wu and He 2018 have 32 groups)
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
Norm = Callable[[int], nn.Module]
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
NORM_HELP = "norm layers: group; or BatchNorm, frozen (with fixed statistics) or live"
NormName = Annotated[str, NORM_HELP]
NORM_BOUNDS = Bounds(choices=NORMS)


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm with fixed statistics: y = weight (x - mean) / sqrt(var + eps) + bias, in train and eval alike."""

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
    """Return relu(norm(x) + residual)."""
    if isinstance(norm, FusedGroupNorm):
        return norm(x, residual, minimum=0.0)
    return F.relu(norm(x) if residual is None else norm(x) + residual, inplace=True)


def group_count(channels: int, max_groups: int) -> int:
    """Return the largest divisor of `channels` that is at most `max_groups`."""
    check_value("max_groups", max_groups, int, Bounds(minimum=1))
    return next(count for count in range(min(max_groups, channels), 0, -1) if channels % count == 0)


def check_norm(norm: str) -> None:
    check_value("model.norm", norm, str, NORM_BOUNDS)


def norm_layer(norm: str, max_groups: int) -> Norm:
    """Return the function from a number of channels to a norm; `max_groups` is for group norms."""
    check_norm(norm)
    if norm == "group":
        return lambda channels: nn.GroupNorm(group_count(channels, max_groups), channels)
    return FrozenBatchNorm2d if norm == "frozen" else nn.BatchNorm2d


def has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


def convert_norms(module: nn.Module, norm: str) -> str:
    """Convert every BatchNorm of a module, in place; return what was done, and whether the function stays the same."""
    check_norm(norm)
    num_norms = sum(isinstance(layer, BATCH_NORMS) for layer in module.modules())
    if not num_norms:
        return "the model has no BatchNorm, and is unchanged"
    if norm == "live":
        return f"{num_norms} BatchNorm layers stay live: clients train with the statistics of their batches"
    if norm == "frozen":
        freeze_norms(module)
        return f"{num_norms} BatchNorm layers have fixed statistics now: exactly the function of evaluation mode"
    group_norms(module, MAX_GROUPS, MIN_GROUP_CHANNELS)
    return f"{num_norms} BatchNorm layers are GroupNorm now: scale and bias stay, but the model's function changes"


def use_running_statistics_for_one(module: nn.Module) -> None:
    """Let every BatchNorm use its running statistics for a batch that has one value of each channel, in place."""
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS):
            layer.register_forward_pre_hook(_pause_for_one)
            layer.register_forward_hook(_resume)


def _pause_for_one(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    norm.is_paused = norm.training and inputs[0].numel() == inputs[0].shape[1]  # type: ignore[assignment]
    if norm.is_paused:
        norm.training = False


def _resume(norm: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
    if norm.is_paused:
        norm.training = True


def freeze_norms(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm with a FrozenBatchNorm2d, in place: exactly the function of eval mode."""

    def frozen(name: str, norm: BatchNorm) -> nn.Module:
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError(f"BatchNorm layer {name!r} has no running statistics to freeze: use group_norms")
        new = FrozenBatchNorm2d(norm.num_features, norm.eps, norm.affine)
        new.running_mean, new.running_var = norm.running_mean, norm.running_var
        return new

    return _replace_batch_norms(module, frozen)


def group_norms(module: nn.Module, max_groups: int, min_channels: int = 1) -> nn.Module:
    """Replace every BatchNorm with a GroupNorm, in place: weight and bias stay, statistics are dropped.

    A norm of few channels has fewer groups, so that a group has `min_channels`.
    """

    def grouped(name: str, norm: BatchNorm) -> nn.Module:
        channels = norm.num_features
        num_groups = group_count(channels, min(max_groups, max(1, channels // min_channels)))
        return nn.GroupNorm(num_groups, channels, norm.eps, norm.affine)

    return _replace_batch_norms(module, grouped)


def _replace_batch_norms(module: nn.Module, replacement: Callable[[str, BatchNorm], nn.Module]) -> nn.Module:
    # All replacements are made before any is set, so that an error leaves the module as it was.
    replacements: dict[nn.Module, nn.Module] = {
        norm: _with_followers(name, norm, replacement(name, norm)).train(norm.training)
        for name, norm in module.named_modules()
        if isinstance(norm, BATCH_NORMS)
    }
    for path, child in list(module.named_modules(remove_duplicate=False)):
        if path and child in replacements:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, replacements[child])
    return replacements.get(module, module)


def _with_followers(name: str, old: BatchNorm, new: nn.Module) -> nn.Module:
    """Give the new norm the old one's scale and bias, and what it did afterwards (timm's BatchNormAct2d)."""
    new.weight, new.bias = old.weight, old.bias
    if type(old).forward is nn.BatchNorm2d.forward:  # that of all BatchNorms
        return new
    followers = [child for child in (getattr(old, "drop", None), getattr(old, "act", None)) if child is not None]
    if not followers:
        raise ValueError(f"norm layer {name!r} is a {type(old).__name__}, which is not known: replace it yourself")
    return nn.Sequential(new, *followers)
