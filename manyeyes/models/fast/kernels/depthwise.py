"""The image gradient of a 3 x 3 depthwise convolution with a stride of 2, in Triton.

Images are [N, H, W, C] in memory. A program computes some channels of some rows, P neighboring pixels at a time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ELEMENTS = 1024
ROWS_PER_PROGRAM = 4  # of the output gradient


@triton.jit
def _load(images, c, row, column, y, x, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr):
    """Load the pixels y below and x to the right of those of a tile; 0 beyond the edge."""
    down, right = row + y, column + x
    mask = (down < HEIGHT) & (right < WIDTH)
    pointers = images + ((down * WIDTH + right) * C)[:, None] + c[None, :]
    return tl.load(pointers, mask[:, None] & (c < C)[None, :], 0).to(tl.float32)


@triton.jit
def _tap(weight, c, tap: tl.constexpr, C: tl.constexpr):
    """Load one of the nine weights of each channel."""
    return tl.load(weight + c * 9 + tap, c < C, 0).to(tl.float32)[None, :]


@triton.jit
def _image_grad(
    grad, weight, image_grad, rows,
    C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of images [2 HEIGHT, 2 WIDTH]: four pixels from each output gradient and its neighbors."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, image = tl.program_id(1) * rows, tl.program_id(2).to(tl.int64)
    grad += image * HEIGHT * WIDTH * C
    image_grad += image * 4 * HEIGHT * WIDTH * C
    w0, w1, w2 = _tap(weight, c, 0, C), _tap(weight, c, 1, C), _tap(weight, c, 2, C)
    w3, w4, w5 = _tap(weight, c, 3, C), _tap(weight, c, 4, C), _tap(weight, c, 5, C)
    w6, w7, w8 = _tap(weight, c, 6, C), _tap(weight, c, 7, C), _tap(weight, c, 8, C)
    end = tl.minimum(first + rows, HEIGHT) * WIDTH
    for begin in range(first * WIDTH, end, P):
        p = begin + tl.arange(0, P)
        row, column = p // WIDTH, p % WIDTH
        center = _load(grad, c, row, column, 0, 0, HEIGHT, WIDTH, C)
        right = _load(grad, c, row, column, 0, 1, HEIGHT, WIDTH, C)
        below = _load(grad, c, row, column, 1, 0, HEIGHT, WIDTH, C)
        diagonal = _load(grad, c, row, column, 1, 1, HEIGHT, WIDTH, C)
        mask = (p < end)[:, None] & (c < C)[None, :]
        pointers = image_grad + ((4 * row * WIDTH + 2 * column) * C)[:, None] + c[None, :]
        tl.store(pointers, w4 * center, mask)
        tl.store(pointers + C, w5 * center + w3 * right, mask)
        tl.store(pointers + 2 * WIDTH * C, w7 * center + w1 * below, mask)
        tl.store(pointers + (2 * WIDTH + 1) * C, w8 * center + w6 * right + w2 * below + w0 * diagonal, mask)


def image_grad(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of images [N, C, 2 H, 2 W], padded by 1, from that of outputs [N, C, H, W]."""
    images, channels, height, width = grad.shape
    power_of_2 = channels & -channels
    block = min(power_of_2, 64) if power_of_2 >= 32 else min(triton.next_power_of_2(channels), 64)
    shape = images, channels, 2 * height, 2 * width
    result = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    grid = triton.cdiv(channels, block), triton.cdiv(height, ROWS_PER_PROGRAM), images
    sizes = {"C": channels, "HEIGHT": height, "WIDTH": width, "P": TILE_ELEMENTS // block, "BLOCK": block}
    _image_grad[grid](grad, weight, result, ROWS_PER_PROGRAM, **sizes)
    return result
