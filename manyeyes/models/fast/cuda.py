"""Layers in the form that a GPU is fastest with: the same functions of the same parameters."""

import copy
from collections import Counter
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.fast import is_plain
from manyeyes.models.fast.depthwise import DepthConv2d
from manyeyes.models.fast.group_norm import FusedGroupNorm

FEW = 4  # channels of images, for which a GPU's own convolutions are slow
MANY = 64  # channels from which on one kernel runs all groups of a convolution
HIGH = {nn.ReLU: torch.inf, nn.ReLU6: 6.0}  # what comes after a norm, and the most that it lets through
ALIGNED = 8  # numbers that a row of a matrix should be a multiple of, for the tensor cores


class PatchConv2d(nn.Conv2d):
    """A Conv2d of images: it gathers the patch under each output pixel and multiplies all by the weights at once.

    A patch is a few stretches of an image's rows, each so long that it is aligned; the weights of what is too much are
    0. Images are multiplied apart, so that the gradient of the weights is many small products and not one endless sum.
    """

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (high, wide), (down, across) = self.kernel_size, self.stride
        assert not isinstance(self.padding, str)
        top, left = self.padding
        extra = -(wide * self.in_channels) % ALIGNED
        rows = F.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, top, top)).flatten(2)
        stretches = F.pad(rows, (0, extra)).unfold(2, wide * self.in_channels + extra, across * self.in_channels)
        patches = stretches.unfold(1, high, down).transpose(3, 4)  # [B, H, W, high, stretch]
        weights = F.pad(weight.permute(0, 2, 3, 1).flatten(2), (0, extra)).flatten(1)
        outputs = torch.bmm(patches.flatten(3).flatten(1, 2), weights.t().expand(len(images), -1, -1))
        if bias is not None:
            outputs = outputs + bias
        return outputs.unflatten(1, patches.shape[1:3]).permute(0, 3, 1, 2)


class RowConv2d(nn.Conv2d):
    """A Conv2d of stride 1 as one matrix product for each row of its kernel, which runs for many clients at once.

    Libraries run a convolution of many groups one group after another where a group has few channels.
    """

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        (high, wide), (top, left) = self.kernel_size, self.padding
        pixels = F.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
        rows, columns = pixels.shape[1] - high + 1, pixels.shape[2] - wide + 1
        across = torch.cat([pixels[:, :, x : x + columns] for x in range(wide)], 3)  # [B, H, columns, wide x channels]
        weights = weight.permute(2, 0, 3, 1).flatten(2)  # [high, out, wide x channels]
        for_each = weights.expand(len(images), -1, -1, -1).contiguous()
        parts = [across[:, y : y + rows].flatten(1, 2) for y in range(high)]
        products = [torch.bmm(part, for_each[:, y].mT) for y, part in enumerate(parts)]
        outputs = sum(products[1:], products[0])
        if bias is not None:
            outputs = outputs + bias
        return outputs.unflatten(1, (rows, columns)).permute(0, 3, 1, 2)


class AlignedLinear(nn.Linear):
    """A Linear whose outputs are padded while they are computed."""

    def forward(self, inputs: Tensor) -> Tensor:
        extra = -self.out_features % ALIGNED
        if not extra:
            return self._product(inputs, self.weight, self.bias)
        bias = None if self.bias is None else F.pad(self.bias, (0, extra))
        return self._product(inputs, F.pad(self.weight, (0, 0, 0, extra)), bias)[..., : self.out_features]

    def _product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(inputs, weight, bias)


class ClientLinear(AlignedLinear):
    """A Linear whose weights' gradient is made as the weights lie in memory.

    Else `vmap` makes it turned round, and for each of many clients it is turned back, number by number.
    """

    def _product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if inputs.dim() != 2:
            return super()._product(inputs, weight, bias)
        outputs: Tensor = multiply(inputs, weight)
        return outputs if bias is None else outputs + bias


@torch.library.custom_op("manyeyes::multiply", mutates_args=())
def multiply(inputs: Tensor, weights: Tensor) -> Tensor:
    """Inputs [B, in] times weights [out, in], or those of several clients [K, B, in] and [K, out, in]."""
    return torch.matmul(inputs, weights.mT)


@multiply.register_fake
def _(inputs: Tensor, weights: Tensor) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], weights.shape[-2])


@multiply.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, weights: Tensor) -> tuple[Tensor, int]:
    inputs_KBI, weights_KOI = (
        _of_clients(one, dim, info.batch_size) for one, dim in zip((inputs, weights), in_dims, strict=True)
    )
    outputs: Tensor = multiply(inputs_KBI, weights_KOI)
    return outputs, 0


def _of_clients(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    """With the clients in front, also of what all of them share."""
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _remember_product(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back_product(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
    inputs, weights = ctx.saved_tensors
    return torch.matmul(slope, weights), torch.matmul(slope.mT, inputs)


multiply.register_autograd(_back_product, setup_context=_remember_product)


class GroupConv2d(nn.Conv2d):
    """A Conv2d of stride 1 whose gradients stay fast when `vmap` runs it for many clients as one of many groups."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        outputs: Tensor = convolve(images, weight, list(self.padding), 1)
        return outputs if bias is None else outputs + bias[:, None, None]


@torch.library.custom_op("manyeyes::convolve", mutates_args=())
def convolve(images: Tensor, weights: Tensor, padding: list[int], groups: int) -> Tensor:
    """A convolution of stride 1."""
    return F.conv2d(images, weights, padding=padding, groups=groups).contiguous(memory_format=torch.channels_last)


@convolve.register_fake
def _(images: Tensor, weights: Tensor, padding: list[int], groups: int) -> Tensor:
    shape = [n + 2 * p - k + 1 for n, p, k in zip(images.shape[2:], padding, weights.shape[2:], strict=True)]
    outputs = images.new_empty(len(images), len(weights), *shape)
    return outputs.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("manyeyes::convolve_slope", mutates_args=())
def convolve_slope(images: Tensor, weights: Tensor, slope: Tensor, padding: list[int], groups: int) -> Tensor:
    """The gradient of the weights."""
    found: Tensor = torch.ops.aten.convolution_backward(
        slope, images, weights, None, [1, 1], padding, [1, 1], False, [0, 0], groups, [False, True, False]
    )[1]
    return found.contiguous()


@convolve_slope.register_fake
def _(images: Tensor, weights: Tensor, slope: Tensor, padding: list[int], groups: int) -> Tensor:
    return torch.empty_like(weights, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weights, ctx.padding, ctx.groups = inputs
    ctx.save_for_backward(images, weights)


def _back(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    """What comes back to the images is a convolution with the weights turned round: one kernel for all groups."""
    images, weights = ctx.saved_tensors
    padding, groups = ctx.padding, ctx.groups
    slope = slope.contiguous(memory_format=torch.channels_last)
    turned = weights.unflatten(0, (groups, -1)).flip(3, 4).transpose(1, 2).flatten(0, 1)
    around = [k - 1 - p for k, p in zip(weights.shape[2:], padding, strict=True)]
    back = convolve(slope, turned, around, groups) if ctx.needs_input_grad[0] else None
    return back, convolve_slope(images, weights, slope, padding, groups), None, None


convolve.register_autograd(_back, setup_context=_remember)


@convolve.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], images: Tensor, weights: Tensor, padding: list[int], groups: int
) -> tuple[Tensor, int]:
    assert groups == 1
    images_KBCHW, weights_KOCHW = (
        _of_clients(one, dim, info.batch_size) for one, dim in zip((images, weights), in_dims[:2], strict=True)
    )
    together = images_KBCHW.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    outputs: Tensor = convolve(together, weights_KOCHW.flatten(0, 1), padding, len(weights_KOCHW))
    return outputs.unflatten(1, weights_KOCHW.shape[:2]), 1


def optimize_for_cuda(module: nn.Module, vmapped: bool) -> nn.Module:
    """A copy of the module with faster layers; `several`: clients run side by side."""
    module = copy.deepcopy(module)
    side_by_side = "cuda" in getattr(module, "channels_last", ())
    alone = side_by_side and not vmapped
    if alone:
        _fuse_norms(module)
    for child in module.modules():
        if type(child) is nn.Linear and (vmapped or child.out_features % ALIGNED):
            child.__class__ = ClientLinear if vmapped else AlignedLinear
        if type(child) is not nn.Conv2d or not is_plain(child):
            continue
        if child.groups > 1:
            if alone and child.groups == child.in_channels == child.out_channels:
                child.__class__ = DepthConv2d
        elif child.in_channels <= FEW:
            child.__class__ = PatchConv2d
        elif vmapped and child.stride == (1, 1):
            child.__class__ = RowConv2d if min(child.in_channels, child.out_channels) < MANY else GroupConv2d
        if type(child) is not nn.Conv2d and not side_by_side:
            child.register_forward_hook(_in_plain_order)
    return module


def _in_plain_order(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
    """As a Conv2d of plain images leaves them, which the `view`s of a module may rely on."""
    return outputs.contiguous()


def _fuse_norms(module: nn.Module) -> None:
    """Each GroupNorm, in a Sequential with the ReLU that follows it, unless it is used in several places."""
    places = Counter(child for parent in module.modules() for child in parent._modules.values())
    for parent in module.modules():
        if type(parent) is nn.GroupNorm and parent.affine:
            parent.__class__ = FusedGroupNorm
    for parent in module.modules():
        if isinstance(parent, nn.Sequential) and type(parent).forward is nn.Sequential.forward:
            for place, (norm, after) in enumerate(pairwise(parent), 1):
                if isinstance(norm, FusedGroupNorm) and places[norm] == 1 and type(after) in HIGH:
                    norm.low, norm.high = 0.0, HIGH[type(after)]
                    parent[place] = nn.Identity()
