"""GroupNorm, a residual and a ReLU as one function of channels-last images.

PyTorch's GroupNorm expects contiguous images and, compiled, copies channels-last ones back and forth. Axes: N images,
C channels, G groups.
"""

from typing import Any

import torch
from torch import Tensor, nn

from manyeyes.models.fast.kernels import can_run_on, to_channels_last


class FusedGroupNorm(nn.GroupNorm):
    """min(max(norm(x) + residual, minimum), maximum)."""

    minimum, maximum = -torch.inf, torch.inf

    def forward(self, x: Tensor, residual: Tensor | None = None, minimum: float | None = None) -> Tensor:
        minimum = self.minimum if minimum is None else minimum
        if x.dim() != 4:
            return (super().forward(x) + (0 if residual is None else residual)).clamp(minimum, self.maximum)
        x, residual = to_channels_last(x), None if residual is None else to_channels_last(residual)
        return normalize(x, self.weight, self.bias, residual, self.num_groups, self.eps, minimum, self.maximum)[0]


@torch.library.custom_op("manyeyes::normalize", mutates_args=())
def normalize(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None,
    groups: int, eps: float, minimum: float, maximum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the outputs, and of each image's groups the mean and the inverse standard deviation [N, G]."""
    if can_run_on(x):
        from manyeyes.models.fast.kernels import group_norm

        return group_norm.normalize(x, weight, bias, residual, groups, eps, minimum, maximum)
    variance, mean = torch.var_mean(x.float().unflatten(1, (groups, -1)), (2, 3, 4), correction=0)
    scale = torch.rsqrt(variance + eps)
    outputs = _affine(_standardize(x, mean, scale), weight, bias, residual).clamp(minimum, maximum)
    return outputs.to(x.dtype), mean, scale


@normalize.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, *bounds: float) -> Any:
    mean = x.new_empty(len(x), groups, dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty_like(mean)


@torch.library.custom_op("manyeyes::normalize_backward", mutates_args=())
def normalize_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, mean: Tensor, scale: Tensor,
    minimum: float, maximum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x and the residual (empty without one), and of each image for bias and weight [N, 2, C].

    With g, the gradient where the output is between the bounds and else 0, and x^ = scale (x - mean), that of x is
    scale (w g - mean(w g) - x^ mean(w g x^)), with means over a group.
    """
    if can_run_on(x):
        from manyeyes.models.fast.kernels import group_norm

        return group_norm.normalize_backward(grad, x, weight, bias, residual, mean, scale, minimum, maximum)
    standardized, w = _standardize(x, mean, scale), weight.float()[:, None, None]
    outputs = _affine(standardized, weight, bias, residual)
    clamped_grad = torch.where((outputs > minimum) & (outputs < maximum), grad.float(), 0)
    sums = torch.stack([clamped_grad.sum((2, 3)), (clamped_grad * standardized).sum((2, 3))], 1)
    means = (sums * weight.float()).unflatten(2, (mean.shape[1], -1)).mean(3) / (x.shape[2] * x.shape[3])
    mean_grad, mean_product = (_per_channel(group_means, x) for group_means in means.unbind(1))
    x_grad = _per_channel(scale, x) * (w * clamped_grad - mean_grad - standardized * mean_product)
    residual_grad = x.new_empty(0) if residual is None else to_channels_last(clamped_grad.to(residual.dtype))
    return to_channels_last(x_grad.to(x.dtype)), residual_grad, sums


@normalize_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, mean: Tensor, *_: Any) -> Any:
    residual_grad = x.new_empty(0) if residual is None else torch.empty_like(residual)
    return torch.empty_like(x), residual_grad, mean.new_empty(len(x), 2, x.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, residual, _, _, ctx.minimum, ctx.maximum = inputs
    ctx.save_for_backward(x, weight, bias, residual, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    weight, residual = ctx.saved_tensors[1], ctx.saved_tensors[3]
    inputs = *ctx.saved_tensors, ctx.minimum, ctx.maximum
    x_grad, residual_grad, sums = normalize_backward(to_channels_last(grad), *inputs)
    bias_grad, weight_grad = sums.sum(0).to(weight.dtype).unbind()
    return x_grad, weight_grad, bias_grad, None if residual is None else residual_grad, None, None, None, None


normalize.register_autograd(_backward, setup_context=_setup)


def _standardize(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (x.float() - _per_channel(mean, x)) * _per_channel(scale, x)


def _affine(standardized: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
    outputs = standardized * weight.float()[:, None, None] + bias.float()[:, None, None]
    return outputs if residual is None else outputs + residual


def _per_channel(groups: Tensor, x: Tensor) -> Tensor:
    """Return a value for each channel [N, C, 1, 1] from one for each group [N, G]."""
    return groups[:, :, None].expand(-1, -1, x.shape[1] // groups.shape[1]).flatten(1)[:, :, None, None]
