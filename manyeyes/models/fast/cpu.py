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
from manyeyes.models.fast import is_plain

TILE = 4  # rows of outputs that are computed together
POINTS = {3: (0, 1, -1, 0.5, -2), 5: (0, 1, -1, 2, -2, 0.5, -0.5)}  # by the rows of a kernel; infinity is one more
MUCH = 320  # channels times rows of a kernel, and
MANY = 4  # outputs for each channel, from which on fewer products outweigh that more numbers are moved;
TALL = 56  # rows of an image, up to which they do: its matrices are as long as it


class WinogradConv2d(nn.Conv2d):
    """A Conv2d of stride 1 with fewer multiplications: four rows of outputs at a time, from values of polynomials.

    Minimal filtering (Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308) along the height alone: kernels of 3 and 5
    rows need a half and two fifths of the products. It rounds two to five times as coarsely as plain sums.
    """

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        (high, wide), (top, left) = self.kernel_size, self.padding
        batch, channels, height, width = images.shape
        outputs = batch * (height + 2 * top - high + 1) * (width + 2 * left - wide + 1)
        few = outputs <= MANY * max(self.in_channels, self.out_channels)
        if few or height > TALL or images.dtype != torch.float32:
            return super()._conv_forward(images, weight, bias)
        into, back, of_kernel = matrices(height, high, top)
        points = len(of_kernel)

        values = into @ images.permute(0, 2, 3, 1).flatten(2)  # [B, tiles x points, width x channels]
        values = values.view(batch, -1, points, width, channels).transpose(2, 3).flatten(3)
        kernels = torch.einsum("py,ocyx->pocx", of_kernel, weight).flatten(0, 1)[:, :, None]
        products = F.conv2d(values.permute(0, 3, 1, 2), kernels, padding=(0, left), groups=points)
        products = products.permute(0, 2, 3, 1).unflatten(3, (points, -1)).transpose(2, 3).flatten(3).flatten(1, 2)
        found = (back @ products).unflatten(2, (-1, self.out_channels)).permute(0, 3, 1, 2)
        return found if bias is None else found + bias[:, None, None]


@cache
def matrices(height: int, high: int, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """From an image's rows to the values of its tiles, from products of values to rows, from a kernel to its values.

    Polynomials are multiplied by multiplying their values; transposed, those three matrices filter.
    """
    points, out = TILE + high - 1, height + 2 * top - high + 1
    tiles = -(-out // TILE)
    into, back = np.zeros((tiles, points, tiles * TILE + high - 1)), np.zeros((tiles * TILE, tiles, points))
    for tile, first in enumerate(range(0, out, TILE)):
        into[tile, :, first : first + points] = np.linalg.inv(_values(high, points)).T
        back[first : first + TILE, tile] = _values(high, TILE).T
    seen = into[:, :, top : top + height].reshape(-1, height)  # what is beside the image is 0
    found = tuple(torch.from_numpy(one).float() for one in (seen, back[:out].reshape(out, -1), _values(high, high)))
    return found[0], found[1], found[2]


def _values(high: int, terms: int) -> NDArray[np.float64]:
    """From the coefficients of a polynomial to its values at the points; the last coefficient is that at infinity."""
    return np.vstack([np.vander(POINTS[high], terms, increasing=True), np.eye(terms)[-1]])


def fewer_products(layer: nn.Conv2d) -> bool:
    """Whether the layer can be computed so, and is large enough for it."""
    high = layer.kernel_size[0]
    can = is_plain(layer) and layer.groups == 1 and layer.stride == (1, 1) and high in POINTS
    return can and min(layer.in_channels, layer.out_channels) * high >= MUCH


HEAVY = 2**18  # weights of a linear layer, from which on its products outweigh that oneDNN is slower to begin
FEW = 2  # rows, below which a product is a vector's, at which MKL is quick everywhere


class Product(torch.autograd.Function):
    """a b^T of matrices, by oneDNN. Its derivatives are such products too."""

    @staticmethod
    def forward(context: Any, a: Tensor, b: Tensor) -> Tensor:
        context.save_for_backward(a, b)
        b = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
        return torch.ops.mkldnn._linear_pointwise(a.contiguous(), b, None, "none", [], "")

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = context.saved_tensors
        of_a, of_b = context.needs_input_grad
        return (
            Product.apply(slope, b.t()) if of_a else None,
            Product.apply(slope.t(), a.t()) if of_b else None,
        )


class OneDNNLinear(nn.Linear):
    """A Linear by oneDNN: MKL, which PyTorch takes, does half of what an AMD core with AVX-512 can."""

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != torch.float32 or rows.numel() < FEW * self.in_features:
            return super().forward(rows)
        found: Tensor = Product.apply(rows.reshape(-1, self.in_features), self.weight)
        found = found.view(*rows.shape[:-1], self.out_features)
        return found if self.bias is None else found + self.bias


def mkl_is_slow() -> bool:
    """Whether PyTorch multiplies by MKL on cores of AMD, whose AVX-512 MKL leaves unused."""
    return (
        "AuthenticAMD" in cpu_name()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def optimize_for_cpu(module: nn.Module) -> nn.Module:
    """A copy of the module with faster layers; convolutions only where its channels lie side by side."""
    module = copy.deepcopy(module)
    beside = "cpu" in getattr(module, "channels_last", ())
    for child in module.modules():
        if type(child) is nn.Conv2d and beside and fewer_products(child):
            child.__class__ = WinogradConv2d
        elif type(child) is nn.Linear and mkl_is_slow() and child.weight.numel() >= HEAVY:
            child.__class__ = OneDNNLinear
    return module
