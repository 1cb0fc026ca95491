"""Layers in the form that a GPU is fastest with: the same functions of the same parameters."""

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.fast import clients_first, has_small_zero_padding, padding_of
from manyeyes.models.fast.convolution import GroupConv2d
from manyeyes.models.fast.group_norm import FusedGroupNorm

MAX_PATCH_CHANNELS = 4  # of images, up to which a GPU's own convolutions are slow
MIN_GROUP_CHANNELS = 64  # from which one kernel runs all groups of a convolution
RELU_MAXIMUM: dict[type, float] = {nn.ReLU: torch.inf, nn.ReLU6: 6.0}
ALIGNMENT = 8  # rows of matrices of a multiple of this many values use the tensor cores


class PatchConv2d(nn.Conv2d):
    """A Conv2d of images: it gathers the patch under each output pixel and multiplies all by the weights at once.

    A patch is some segments of image rows, each padded to an aligned length; the weights of the padding are 0. Images
    are multiplied one by one, so that the gradient of the weights is many small products instead of one huge sum.
    """

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (rows, columns), (down, across), (top, left) = self.kernel_size, self.stride, padding_of(self)
        extra = -(columns * self.in_channels) % ALIGNMENT
        lines = F.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, top, top)).flatten(2)
        segments = F.pad(lines, (0, extra)).unfold(2, columns * self.in_channels + extra, across * self.in_channels)
        patches = segments.unfold(1, rows, down).transpose(3, 4)  # [B, H, W, rows, segment]
        weights = F.pad(weight.permute(0, 2, 3, 1).flatten(2), (0, extra)).flatten(1)
        outputs = torch.bmm(patches.flatten(3).flatten(1, 2), weights.t().expand(len(images), -1, -1))
        outputs = outputs if bias is None else outputs + bias
        return outputs.unflatten(1, patches.shape[1:3]).permute(0, 3, 1, 2)


class RowConv2d(nn.Conv2d):
    """A Conv2d of stride 1 as one product for each row of its kernel; libraries run groups of few channels in turn."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (rows, columns), (top, left) = self.kernel_size, padding_of(self)
        pixels = F.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
        height, width = pixels.shape[1] - rows + 1, pixels.shape[2] - columns + 1
        segments = torch.cat([pixels[:, :, x : x + width] for x in range(columns)], 3)  # [B, H, W, columns x channels]
        weights = weight.permute(2, 0, 3, 1).flatten(2)  # [rows, out, columns x channels]
        weights_of_images = weights.expand(len(images), -1, -1, -1).contiguous()
        row_inputs = [segments[:, y : y + height].flatten(1, 2) for y in range(rows)]
        products = [torch.bmm(inputs, weights_of_images[:, y].mT) for y, inputs in enumerate(row_inputs)]
        outputs = sum(products[1:], products[0])
        outputs = outputs if bias is None else outputs + bias
        return outputs.unflatten(1, (height, width)).permute(0, 3, 1, 2)


class AlignedLinear(nn.Linear):
    """A Linear whose outputs are padded to an aligned number while they are computed."""

    def forward(self, inputs: Tensor) -> Tensor:
        extra = -self.out_features % ALIGNMENT
        if not extra:
            return self._product(inputs, self.weight, self.bias)
        bias = None if self.bias is None else F.pad(self.bias, (0, extra))
        return self._product(inputs, F.pad(self.weight, (0, 0, 0, extra)), bias)[..., : self.out_features]

    def _product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(inputs, weight, bias)


class ClientLinear(AlignedLinear):
    """A Linear whose weight gradient has the layout of the weights; `vmap` alone computes it transposed."""

    def _product(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if inputs.dim() != 2:
            return super()._product(inputs, weight, bias)
        outputs: Tensor = multiply(inputs, weight)
        return outputs if bias is None else outputs + bias


@torch.library.custom_op("manyeyes::multiply", mutates_args=())
def multiply(inputs: Tensor, weights: Tensor) -> Tensor:
    """Multiply inputs [B, in] by weights [out, in], or those of several clients [K, B, in] by [K, out, in]."""
    return torch.matmul(inputs, weights.mT)


@multiply.register_fake
def _(inputs: Tensor, weights: Tensor) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], weights.shape[-2])


@multiply.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], inputs: Tensor, weights: Tensor) -> tuple[Tensor, int]:
    inputs_KBI = clients_first(inputs, in_dims[0], info.batch_size)
    return multiply(inputs_KBI, clients_first(weights, in_dims[1], info.batch_size)), 0


def _multiply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    inputs, weights = ctx.saved_tensors
    return torch.matmul(grad, weights), torch.matmul(grad.mT, inputs)


multiply.register_autograd(_multiply_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def optimize_for_cuda(module: nn.Module, vmapped: bool) -> nn.Module:
    """Return a copy of the module with faster layers, for one client or, if `vmapped`, for several at once."""
    module = copy.deepcopy(module)
    is_channels_last = "cuda" in getattr(module, "channels_last", ())
    fuses_layers = is_channels_last and not vmapped
    if fuses_layers:
        _fuse_norms(module)
    for layer in module.modules():
        if type(layer) is nn.Linear and (vmapped or layer.out_features % ALIGNMENT):
            layer.__class__ = ClientLinear if vmapped else AlignedLinear
        if fast := _faster_convolution(layer, vmapped, fuses_layers):
            layer.__class__ = fast
            if not is_channels_last:  # a `view` in the module may rely on the layout of a plain Conv2d
                layer.register_forward_hook(_to_contiguous)
    return module


def _to_contiguous(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
    """Return contiguous outputs, also by their strides.

    Outputs of one pixel are contiguous in every memory format. With the strides of channels-last images, BatchNorm would
    ask for that format, which `vmap` does not answer.
    """
    return outputs.contiguous().flatten(1).view(outputs.shape)


def _faster_convolution(layer: nn.Module, vmapped: bool, fuses_layers: bool) -> type[nn.Conv2d] | None:
    """Return the class that computes a layer faster if it is a convolution, or None."""
    if type(layer) is not nn.Conv2d or not has_small_zero_padding(layer):
        return None
    if layer.groups > 1:
        is_depthwise = layer.groups == layer.in_channels == layer.out_channels
        return GroupConv2d if fuses_layers and is_depthwise else None
    if layer.in_channels <= MAX_PATCH_CHANNELS:
        return PatchConv2d
    if not vmapped or layer.stride != (1, 1):
        return None
    return RowConv2d if min(layer.in_channels, layer.out_channels) < MIN_GROUP_CHANNELS else GroupConv2d


def _fuse_norms(module: nn.Module) -> None:
    """Fuse each GroupNorm of a Sequential with the ReLU after it, unless the norm is used in several places."""
    num_uses = Counter(layer for _, layer in module.named_modules(remove_duplicate=False))
    for layer in module.modules():
        if type(layer) is nn.GroupNorm and layer.affine:
            layer.__class__ = FusedGroupNorm
    sequentials = [layer for layer in module.modules() if isinstance(layer, nn.Sequential)]
    plain = [sequential for sequential in sequentials if type(sequential).forward is nn.Sequential.forward]
    for layers, index in [(sequential, index) for sequential in plain for index in range(1, len(sequential))]:
        norm, maximum = layers[index - 1], RELU_MAXIMUM.get(type(layers[index]))
        if isinstance(norm, FusedGroupNorm) and num_uses[norm] == 1 and maximum:
            norm.minimum, norm.maximum = 0.0, maximum
            layers[index] = nn.Identity()
