"""Convolutions with fewer products, for CPUs: the same functions of the same parameters."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.layers import is_plain

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
