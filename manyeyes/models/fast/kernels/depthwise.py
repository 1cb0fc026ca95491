"""What a 3 x 3 convolution of each channel alone, with a stride of 2, sends back to its images, in Triton.

Images lie [N, H, W, C] in memory. A program takes some channels of some rows, P neighbouring pixels at a time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # numbers of a tile
ROWS = 4  # of slopes that a program takes


@triton.jit
def _at(images, c, row, column, y, x, HIGH: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr):
    """What lies so far below and to the right of the pixels of a tile; 0 beyond the edge."""
    high, wide = row + y, column + x
    inside = (high < HIGH) & (wide < WIDE)
    at = images + ((high * WIDE + wide) * C)[:, None] + c[None, :]
    return tl.load(at, inside[:, None] & (c < C)[None, :], 0).to(tl.float32)


@triton.jit
def _of(weight, c, tap: tl.constexpr, C: tl.constexpr):
    """One of the nine weights of each channel."""
    return tl.load(weight + c * 9 + tap, c < C, 0).to(tl.float32)[None, :]


@triton.jit
def _spread(
    slope, weight, back, rows,
    C: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What comes back to images [2 HIGH, 2 WIDE] from a stride of 2: of each slope and its neighbours, four pixels."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, image = tl.program_id(1) * rows, tl.program_id(2).to(tl.int64)
    slope += image * HIGH * WIDE * C
    back += image * 4 * HIGH * WIDE * C
    w0, w1, w2 = _of(weight, c, 0, C), _of(weight, c, 1, C), _of(weight, c, 2, C)
    w3, w4, w5 = _of(weight, c, 3, C), _of(weight, c, 4, C), _of(weight, c, 5, C)
    w6, w7, w8 = _of(weight, c, 6, C), _of(weight, c, 7, C), _of(weight, c, 8, C)
    end = tl.minimum(first + rows, HIGH) * WIDE
    for begin in range(first * WIDE, end, P):
        p = begin + tl.arange(0, P)
        row, column = p // WIDE, p % WIDE
        here = _at(slope, c, row, column, 0, 0, HIGH, WIDE, C)
        right = _at(slope, c, row, column, 0, 1, HIGH, WIDE, C)
        below = _at(slope, c, row, column, 1, 0, HIGH, WIDE, C)
        across = _at(slope, c, row, column, 1, 1, HIGH, WIDE, C)
        inside = (p < end)[:, None] & (c < C)[None, :]
        at = back + ((4 * row * WIDE + 2 * column) * C)[:, None] + c[None, :]
        tl.store(at, w4 * here, inside)
        tl.store(at + C, w5 * here + w3 * right, inside)
        tl.store(at + 2 * WIDE * C, w7 * here + w1 * below, inside)
        tl.store(at + (2 * WIDE + 1) * C, w8 * here + w6 * right + w2 * below + w0 * across, inside)


def to_images(slope: Tensor, weight: Tensor) -> Tensor:
    """From slopes [N, C, H, W] and weights [C, 1, 3, 3] to images [N, C, 2 H, 2 W], which were padded by 1."""
    images, channels, high, wide = slope.shape
    power = channels & -channels
    block = min(power, 64) if power >= 32 else min(triton.next_power_of_2(channels), 64)
    shape = images, channels, 2 * high, 2 * wide
    back = torch.empty(shape, dtype=slope.dtype, device=slope.device, memory_format=torch.channels_last)
    grid = triton.cdiv(channels, block), triton.cdiv(high, ROWS), images
    _spread[grid](slope, weight, back, ROWS, C=channels, HIGH=high, WIDE=wide, P=TILE // block, BLOCK=block)
    return back
