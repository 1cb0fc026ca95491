"""Convolutions of channels-last images whose gradients are fast on a GPU with many groups.

PyTorch computes the outputs and the gradient of the weights at about the speed of memory, but the gradient of the
images several times slower.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.fast import clients_first, padding_of
from manyeyes.models.fast.kernels import can_run_on, to_channels_last

Sizes = list[int]  # by height and width


class GroupConv2d(nn.Conv2d):
    """A Conv2d that is depthwise, or that `vmap` runs for many clients, as one grouped convolution of stride 1."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = convolve(images, weight, list(self.stride), list(padding_of(self)), self.groups)
        return outputs if bias is None else outputs + bias[:, None, None]


@torch.library.custom_op("manyeyes::convolve", mutates_args=())
def convolve(images: Tensor, weights: Tensor, stride: Sizes, padding: Sizes, groups: int) -> Tensor:
    return to_channels_last(F.conv2d(images, weights, None, stride, padding, groups=groups))


@convolve.register_fake
def _(images: Tensor, weights: Tensor, stride: Sizes, padding: Sizes, groups: int) -> Tensor:
    sizes = zip(images.shape[2:], padding, weights.shape[2:], stride, strict=True)
    shape = len(images), len(weights), *((n + 2 * p - k) // s + 1 for n, p, k, s in sizes)
    return to_channels_last(images.new_empty(shape))


@convolve.register_vmap
def _(info: Any, in_dims: Any, images: Tensor, weights: Tensor, stride: Sizes, padding: Sizes, groups: int) -> Any:
    assert groups == 1, "a grouped convolution of several clients is not replaced by a GroupConv2d"
    images_KBCHW = clients_first(images, in_dims[0], info.batch_size)
    weights_KOCHW = clients_first(weights, in_dims[1], info.batch_size)
    merged = to_channels_last(images_KBCHW.transpose(0, 1).flatten(1, 2))
    outputs: Tensor = convolve(merged, weights_KOCHW.flatten(0, 1), stride, padding, len(weights_KOCHW))
    return outputs.unflatten(1, weights_KOCHW.shape[:2]), 1


@torch.library.custom_op("manyeyes::convolve_weight_grad", mutates_args=())
def weight_grad(grad: Tensor, images: Tensor, weights: Tensor, stride: Sizes, padding: Sizes, groups: int) -> Tensor:
    options = None, stride, padding, [1, 1], False, [0, 0], groups, [False, True, False]
    return torch.ops.aten.convolution_backward(grad, images, weights, *options)[1].contiguous()


@weight_grad.register_fake
def _(grad: Tensor, images: Tensor, weights: Tensor, *options: Any) -> Tensor:
    return torch.empty_like(weights, memory_format=torch.contiguous_format)


@torch.library.custom_op("manyeyes::convolve_image_grad", mutates_args=())
def image_grad(grad: Tensor, images: Tensor, weights: Tensor, stride: Sizes, padding: Sizes, groups: int) -> Tensor:
    """Return the gradient of the images of a depthwise convolution."""
    has_even_sides = images.shape[2] % 2 == images.shape[3] % 2 == 0
    is_3x3 = (stride, padding, list(weights.shape[2:])) == ([2, 2], [1, 1], [3, 3])
    if has_even_sides and is_3x3 and can_run_on(images):
        from manyeyes.models.fast.kernels import depthwise

        return to_channels_last(depthwise.image_grad(grad, weights.contiguous()))
    options = None, stride, padding, [1, 1], False, [0, 0], groups, [True, False, False]
    return to_channels_last(torch.ops.aten.convolution_backward(grad, images, weights, *options)[0])


@image_grad.register_fake
def _(grad: Tensor, images: Tensor, weights: Tensor, *options: Any) -> Tensor:
    return to_channels_last(torch.empty_like(images))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weights, *ctx.options = inputs
    ctx.save_for_backward(images, weights)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients; with stride 1 that of the images is a convolution with the flipped weights."""
    images, weights = ctx.saved_tensors
    stride, padding, groups = ctx.options
    grad, images_grad = to_channels_last(grad), None
    if ctx.needs_input_grad[0] and stride == [1, 1]:
        flipped = weights.unflatten(0, (groups, -1)).flip(3, 4).transpose(1, 2).flatten(0, 1)
        full_padding = [k - 1 - p for k, p in zip(weights.shape[2:], padding, strict=True)]
        images_grad = convolve(grad, flipped, stride, full_padding, groups)
    elif ctx.needs_input_grad[0]:
        images_grad = image_grad(grad, images, weights, *ctx.options)
    return images_grad, weight_grad(grad, images, weights, *ctx.options), None, None, None


convolve.register_autograd(_backward, setup_context=_setup)
