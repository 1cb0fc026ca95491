"""GroupNorm, what is added to it and the ReLU after it, as one function of images whose channels lie side by side.

PyTorch's own is made for images in the other order: compiled, it copies them to and fro. Axes: N images, C channels,
G groups.
"""

from typing import Any

import torch
from torch import Tensor, nn

from manyeyes.models.fast.kernels import to_channels_last, usable


class FusedGroupNorm(nn.GroupNorm):
    """min(max(norm(x) + around, low), high)."""

    low, high = -torch.inf, torch.inf

    def forward(self, x: Tensor, around: Tensor | None = None, low: float | None = None) -> Tensor:
        low = self.low if low is None else low
        if x.dim() != 4:
            return (super().forward(x) + (0 if around is None else around)).clamp(low, self.high)
        x, around = to_channels_last(x), None if around is None else to_channels_last(around)
        outputs: Tensor = normalise(x, self.weight, self.bias, around, self.num_groups, self.eps, low, self.high)[0]
        return outputs


@torch.library.custom_op("manyeyes::normalise", mutates_args=())
def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, groups: int, eps: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs; and of each image's groups the mean, and one over the deviation [N, G]."""
    if usable(x):
        from manyeyes.models.fast.kernels import group_norm

        return group_norm.normalise(x, weight, bias, around, groups, eps, low, high)
    variance, mean = torch.var_mean(x.float().unflatten(1, (groups, -1)), (2, 3, 4), correction=0)
    scale = torch.rsqrt(variance + eps)
    return _sum(_normal(x, mean, scale), weight, bias, around).clamp(low, high).to(x.dtype), mean, scale


@normalise.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, groups: int, eps: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(len(x), groups, dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty_like(mean)


@torch.library.custom_op("manyeyes::normalise_back", mutates_args=())
def normalise_back(
    slope: Tensor, x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, mean: Tensor, scale: Tensor,
    low: float, high: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What comes back to x, to `around` (where there is one), and of each image to bias and weight [N, 2, C].

    With g, the slope where the output is between the bounds and else 0, and x^ = scale (x - mean), that to x is
    scale (w g - mean(w g) - x^ mean(w g x^)), the means over a group.
    """
    if usable(x):
        from manyeyes.models.fast.kernels import group_norm

        return group_norm.normalise_back(slope, x, weight, bias, around, mean, scale, low, high)
    hat, w = _normal(x, mean, scale), weight.float()[:, None, None]
    outputs = _sum(hat, weight, bias, around)
    passed = torch.where((outputs > low) & (outputs < high), slope.float(), 0)
    sums = torch.stack([passed.sum((2, 3)), (passed * hat).sum((2, 3))], 1)
    means = (sums * weight.float()).unflatten(2, (mean.shape[1], -1)).mean(3) / (x.shape[2] * x.shape[3])
    first, second = (_of_channels(each, x) for each in means.unbind(1))
    back = _of_channels(scale, x) * (w * passed - first - hat * second)
    return (
        to_channels_last(back.to(x.dtype)),
        x.new_empty(0) if around is None else to_channels_last(passed.to(around.dtype)),
        sums,
    )


@normalise_back.register_fake
def _(
    slope: Tensor, x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, mean: Tensor, scale: Tensor,
    low: float, high: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    beside = x.new_empty(0) if around is None else torch.empty_like(around)
    return torch.empty_like(x), beside, mean.new_empty(len(x), 2, x.shape[1])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, around, _, _, ctx.low, ctx.high = inputs
    ctx.save_for_backward(x, weight, bias, around, *output[1:])


def _back(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    weight, around = ctx.saved_tensors[1], ctx.saved_tensors[3]
    back, back_around, sums = normalise_back(to_channels_last(slope), *ctx.saved_tensors, ctx.low, ctx.high)
    to_bias, to_weight = sums.sum(0).to(weight.dtype).unbind()
    return back, to_weight, to_bias, None if around is None else back_around, None, None, None, None


normalise.register_autograd(_back, setup_context=_remember)


def _normal(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (x.float() - _of_channels(mean, x)) * _of_channels(scale, x)


def _sum(hat: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None) -> Tensor:
    outputs = hat * weight.float()[:, None, None] + bias.float()[:, None, None]
    return outputs if around is None else outputs + around


def _of_channels(groups: Tensor, x: Tensor) -> Tensor:
    """From a number for each group [N, G] to one for each channel [N, C, 1, 1]."""
    return groups[:, :, None].expand(-1, -1, x.shape[1] // groups.shape[1]).flatten(1)[:, :, None, None]
