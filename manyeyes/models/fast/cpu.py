"""Layers that are faster on a CPU core: the same functions of the same parameters."""

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.io.cpu_info import cpu_name
from manyeyes.models.fast import has_small_zero_padding, padding_of

# Winograd convolution saves products and moves more data: it pays for kernels and outputs of at least these sizes, and
# for images of at most this height, which its matrices have too.
TILE_ROWS = 4  # rows of outputs that are computed at once
POINTS = {3: (0, 1, -1, 0.5, -2), 5: (0, 1, -1, 2, -2, 0.5, -0.5)}  # by the rows of a kernel; one more is at infinity
MIN_CHANNELS_TIMES_ROWS = 320
MIN_OUTPUTS_PER_CHANNEL = 4
MAX_HEIGHT = 56
MIN_ONEDNN_WEIGHTS = 2**18  # of a linear layer; for smaller ones oneDNN's start-up time is longer
MIN_ONEDNN_ROWS = 2  # MKL is fast for the product with a single vector


class WinogradConv2d(nn.Conv2d):
    """A Conv2d of stride 1 with fewer multiplications: four rows of outputs at once, from values of polynomials.

    Minimal filtering (Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308) along the height only: kernels of 3 and 5
    rows need a half and two fifths of the products. Rounding errors are two to five times those of plain sums.
    """

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (rows, columns), (top, left) = self.kernel_size, padding_of(self)
        batch, channels, height, width = images.shape
        num_outputs = batch * (height + 2 * top - rows + 1) * (width + 2 * left - columns + 1)
        is_small = num_outputs <= MIN_OUTPUTS_PER_CHANNEL * max(self.in_channels, self.out_channels)
        if is_small or height > MAX_HEIGHT or images.dtype != torch.float32:
            return super()._conv_forward(images, weight, bias)
        image_matrix, output_matrix, kernel_matrix = winograd_matrices(height, rows, top)
        points = len(kernel_matrix)

        values = image_matrix @ images.permute(0, 2, 3, 1).flatten(2)  # [B, tiles x points, width x channels]
        values = values.view(batch, -1, points, width, channels).transpose(2, 3).flatten(3)
        kernels = torch.einsum("py,ocyx->pocx", kernel_matrix, weight).flatten(0, 1)[:, :, None]
        products = F.conv2d(values.permute(0, 3, 1, 2), kernels, padding=(0, left), groups=points)
        products = products.permute(0, 2, 3, 1).unflatten(3, (points, -1)).transpose(2, 3).flatten(3).flatten(1, 2)
        outputs = (output_matrix @ products).unflatten(2, (-1, self.out_channels)).permute(0, 3, 1, 2)
        return outputs if bias is None else outputs + bias[:, None, None]


@cache
def winograd_matrices(height: int, kernel_rows: int, top: int) -> tuple[Tensor, ...]:
    """Return the matrices from image rows to values, from products of values to output rows, and for kernels.

    Polynomials are multiplied by multiplying their values at some points; the transposed matrices filter.
    """
    points, num_rows = TILE_ROWS + kernel_rows - 1, height + 2 * top - kernel_rows + 1
    tiles = -(-num_rows // TILE_ROWS)
    to_values = np.zeros((tiles, points, tiles * TILE_ROWS + kernel_rows - 1))
    to_rows = np.zeros((tiles * TILE_ROWS, tiles, points))
    for tile, first in enumerate(range(0, num_rows, TILE_ROWS)):
        to_values[tile, :, first : first + points] = np.linalg.inv(_evaluation(kernel_rows, points)).T
        to_rows[first : first + TILE_ROWS, tile] = _evaluation(kernel_rows, TILE_ROWS).T
    unpadded = to_values[:, :, top : top + height].reshape(-1, height)  # the padding is 0
    matrices = (unpadded, to_rows[:num_rows].reshape(num_rows, -1), _evaluation(kernel_rows, kernel_rows))
    return tuple(torch.from_numpy(matrix).float() for matrix in matrices)


def _evaluation(kernel_rows: int, num_coefficients: int) -> NDArray[np.float64]:
    """Return the matrix from a polynomial's coefficients to its values at the points; the last point is infinity."""
    vandermonde = np.vander(POINTS[kernel_rows], num_coefficients, increasing=True)
    return np.vstack([vandermonde, np.eye(num_coefficients)[-1]])


def is_faster_by_winograd(layer: nn.Conv2d) -> bool:
    rows = layer.kernel_size[0]
    is_supported = has_small_zero_padding(layer) and layer.groups == 1 and layer.stride == (1, 1) and rows in POINTS
    return is_supported and min(layer.in_channels, layer.out_channels) * rows >= MIN_CHANNELS_TIMES_ROWS


class OneDNNProduct(torch.autograd.Function):
    """a b^T of matrices, by oneDNN; so are its derivatives."""

    @staticmethod
    def forward(context: Any, a: Tensor, b: Tensor) -> Tensor:
        context.save_for_backward(a, b)
        b = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
        return torch.ops.mkldnn._linear_pointwise(a.contiguous(), b, None, "none", [], "")

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = context.saved_tensors
        needs_a, needs_b = context.needs_input_grad
        grad_a = OneDNNProduct.apply(grad, b.t()) if needs_a else None
        return grad_a, OneDNNProduct.apply(grad.t(), a.t()) if needs_b else None


class OneDNNLinear(nn.Linear):
    """A Linear by oneDNN: MKL, PyTorch's default, reaches half the speed of an AMD core with AVX-512."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.dtype != torch.float32 or inputs.numel() < MIN_ONEDNN_ROWS * self.in_features:
            return super().forward(inputs)
        outputs = OneDNNProduct.apply(inputs.reshape(-1, self.in_features), self.weight).view(*inputs.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


def mkl_is_slow() -> bool:
    """Return whether PyTorch multiplies by MKL on AMD cores, whose AVX-512 MKL does not use."""
    return (
        "AuthenticAMD" in cpu_name()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def optimize_for_cpu(module: nn.Module) -> nn.Module:
    """Return a copy of the module with faster layers; convolutions only where it works in channels-last."""
    module = copy.deepcopy(module)
    is_channels_last = "cpu" in getattr(module, "channels_last", ())
    for child in module.modules():
        if type(child) is nn.Conv2d and is_channels_last and is_faster_by_winograd(child):
            child.__class__ = WinogradConv2d
        elif type(child) is nn.Linear and mkl_is_slow() and child.weight.numel() >= MIN_ONEDNN_WEIGHTS:
            child.__class__ = OneDNNLinear
    return module
