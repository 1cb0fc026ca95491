"""Convolutions of each channel alone, of images whose channels lie side by side, with gradients that are fast on a GPU.

Its library computes those of the weights, and the outputs, at about the speed of memory, but what comes back to the
images several times slower.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.fast.kernels import to_channels_last, usable


class DepthConv2d(nn.Conv2d):
    """A Conv2d with as many groups as channels, in and out."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        outputs: Tensor = convolve(images, weight, list(self.stride), list(self.padding))
        return outputs if bias is None else outputs + bias[:, None, None]


@torch.library.custom_op("manyeyes::depthwise", mutates_args=())
def convolve(images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """A convolution of each channel."""
    return to_channels_last(F.conv2d(images, weight, None, stride, padding, groups=len(weight)))


@convolve.register_fake
def _(images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    sizes = zip(images.shape[2:], padding, weight.shape[2:], stride, strict=True)
    return to_channels_last(images.new_empty(*images.shape[:2], *((n + 2 * p - k) // s + 1 for n, p, k, s in sizes)))


@torch.library.custom_op("manyeyes::depthwise_back", mutates_args=())
def convolve_back(
    slope: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """What comes back to images and weights."""
    to_weight: Tensor = _usual(slope, images, weight, stride, padding, [False, True, False])[1]
    return to_channels_last(_to_images(slope, images, weight, stride, padding)), to_weight.contiguous()


@convolve_back.register_fake
def _(slope: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    return to_channels_last(torch.empty_like(images)), torch.empty_like(weight, memory_format=torch.contiguous_format)


def _to_images(slope: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """With a stride of 1 that is a convolution with the weights turned round."""
    if stride == [1, 1]:
        around = [k - 1 - p for k, p in zip(weight.shape[2:], padding, strict=True)]
        return F.conv2d(slope, weight.flip(2, 3), None, 1, around, groups=len(weight))
    even = images.shape[2] % 2 == images.shape[3] % 2 == 0
    small = (stride, padding, list(weight.shape[2:])) == ([2, 2], [1, 1], [3, 3])
    if even and small and usable(images):
        from manyeyes.models.fast.kernels import depthwise

        return depthwise.to_images(slope, weight.contiguous())
    return _usual(slope, images, weight, stride, padding, [True, False, False])[0]


def _usual(
    slope: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int], wanted: list[bool]
) -> Any:
    return torch.ops.aten.convolution_backward(
        slope, images, weight, None, stride, padding, [1, 1], False, [0, 0], len(weight), wanted
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weight, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(images, weight)


def _back(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    return *convolve_back(to_channels_last(slope), *ctx.saved_tensors, ctx.stride, ctx.padding), None, None


convolve.register_autograd(_back, setup_context=_remember)
