"""Depthwise convolutions of channels-last images, with gradients that are fast on a GPU.

PyTorch computes the outputs and the gradient of the weights at about the speed of memory, but the gradient of the
images several times slower.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.fast import padding_of
from manyeyes.models.fast.kernels import can_run_on, to_channels_last


class DepthConv2d(nn.Conv2d):
    """A Conv2d with as many groups as channels, in and out."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = convolve(images, weight, list(self.stride), list(padding_of(self)))
        return outputs if bias is None else outputs + bias[:, None, None]


@torch.library.custom_op("manyeyes::depthwise", mutates_args=())
def convolve(images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """Convolve each channel."""
    return to_channels_last(F.conv2d(images, weight, None, stride, padding, groups=len(weight)))


@convolve.register_fake
def _(images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    sizes = zip(images.shape[2:], padding, weight.shape[2:], stride, strict=True)
    return to_channels_last(images.new_empty(*images.shape[:2], *((n + 2 * p - k) // s + 1 for n, p, k, s in sizes)))


@torch.library.custom_op("manyeyes::depthwise_backward", mutates_args=())
def convolve_backward(
    grad: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of images and weights."""
    weight_grad: Tensor = _torch_backward(grad, images, weight, stride, padding, [False, True, False])[1]
    return to_channels_last(_image_grad(grad, images, weight, stride, padding)), weight_grad.contiguous()


@convolve_backward.register_fake
def _(grad: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    return to_channels_last(torch.empty_like(images)), torch.empty_like(weight, memory_format=torch.contiguous_format)


def _image_grad(grad: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """Return the gradient of the images; with a stride of 1 it is a convolution with the flipped weights."""
    if stride == [1, 1]:
        full_padding = [k - 1 - p for k, p in zip(weight.shape[2:], padding, strict=True)]
        return F.conv2d(grad, weight.flip(2, 3), None, 1, full_padding, groups=len(weight))
    has_even_sides = images.shape[2] % 2 == images.shape[3] % 2 == 0
    is_3x3 = (stride, padding, list(weight.shape[2:])) == ([2, 2], [1, 1], [3, 3])
    if has_even_sides and is_3x3 and can_run_on(images):
        from manyeyes.models.fast.kernels import depthwise

        return depthwise.image_grad(grad, weight.contiguous())
    gradient: Tensor = _torch_backward(grad, images, weight, stride, padding, [True, False, False])[0]
    return gradient


def _torch_backward(
    grad: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int], output_mask: list[bool]
) -> Any:
    return torch.ops.aten.convolution_backward(
        grad, images, weight, None, stride, padding, [1, 1], False, [0, 0], len(weight), output_mask
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(images, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *convolve_backward(to_channels_last(grad), *ctx.saved_tensors, ctx.stride, ctx.padding), None, None


convolve.register_autograd(_backward, setup_context=_setup)
