"""GroupNorm, a residual and a clamp of images that are [N, HW, C] in memory, and its gradient, in Triton.

Three kernels each way. A program of the first sums some lines of an image for some positions, in an order that depends
on the shapes only; one of the second adds up these partial sums and the channels of a group; one of the third writes
some lines of the outputs. An image is read as lines of V positions: as many pixels of C channels as make V a multiple
of a power of two, which a program reads as it is in memory. Axes: N images, HW pixels, C channels, G groups of D
channels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

Sizes = dict[str, int]  # constants that a kernel is compiled for
TILE_ELEMENTS = 2048  # that a program reads at a time
BLOCK_POSITIONS = 64  # of a line that a program takes, where the line is long enough
SUM_PROGRAMS, WRITE_PROGRAMS = 512, 16384  # number that is aimed at
MIN_SUM_TILES = 8  # that a program sums at least
PIPELINE_STAGES = 4  # tiles that are loaded while one is summed


@triton.jit
def _partial_moments(
    x, partials, lines, lines_per_program,
    C: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    program, image = tl.program_id(1), tl.program_id(2)
    x += image.to(tl.int64) * lines * V
    shift = tl.load(x + v % C).to(tl.float32)[None, :]
    sum_1 = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_2 = tl.zeros([ROWS, BLOCK], tl.float32)
    end = tl.minimum(lines, (program + 1) * lines_per_program)
    for line in tl.range(program * lines_per_program, end, ROWS, num_stages=STAGES):
        r = line + tl.arange(0, ROWS)
        offsets = r[:, None] * V + v[None, :]
        if EVEN:
            value = tl.load(x + offsets).to(tl.float32) - shift
        else:
            mask = _mask(r, end, v, V, BLOCK)
            value = tl.where(mask, tl.load(x + offsets, mask, 0).to(tl.float32) - shift, 0.0)
        sum_1 += value
        sum_2 += value * value
    partials += (image * tl.num_programs(1) + program) * 2 * V
    tl.store(partials + v, tl.sum(sum_1, 0), v < V)
    tl.store(partials + V + v, tl.sum(sum_2, 0), v < V)


@triton.jit
def _mask(r, end, v, V: tl.constexpr, BLOCK: tl.constexpr):
    return (r < end)[:, None] if V % BLOCK == 0 else (r < end)[:, None] & (v < V)[None, :]


@triton.jit
def _moments(
    x, partials, mean, scale, lines, count, eps,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image, group = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    c = group * D + d
    sum_1, sum_2 = _sum_partials(partials + image * count * 2 * V + c, d < D, count, C, V, BLOCK)
    pixels = lines * (V // C)
    means = tl.load(x + image.to(tl.int64) * lines * V + c, d < D, 0).to(tl.float32) + sum_1 / pixels
    squares = tl.maximum(sum_2 - sum_1 * sum_1 / pixels, 0.0)
    group_mean = tl.sum(tl.where(d < D, means, 0.0), 0) / D
    deviation = tl.where(d < D, means - group_mean, 0.0)
    variance = (tl.sum(squares, 0) / pixels + tl.sum(deviation * deviation, 0)) / D
    group_index = image * tl.num_programs(1) + group
    tl.store(mean + group_index, group_mean)
    tl.store(scale + group_index, 1 / tl.sqrt(variance + eps))


@triton.jit
def _sum_partials(partials, is_channel, count, C: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr):
    """Return both sums of some channels, over all partial sums and the pixels of a line."""
    sum_1 = tl.zeros([8, BLOCK], tl.float32)
    sum_2 = tl.zeros([8, BLOCK], tl.float32)
    for start in range(0, count * (V // C), 8):
        n = start + tl.arange(0, 8)[:, None]
        mask = (n < count * (V // C)) & is_channel[None, :]
        pointers = partials[None, :] + n // (V // C) * 2 * V + n % (V // C) * C
        sum_1 += tl.load(pointers, mask, 0)
        sum_2 += tl.load(pointers + V, mask, 0)
    return tl.sum(sum_1, 0), tl.sum(sum_2, 0)


@triton.jit
def _write(
    x, residual, mean, scale, weight, bias, outputs, lines, lines_per_program, minimum, maximum,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, HAS_MAXIMUM: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    program, image = tl.program_id(1), tl.program_id(2)
    group_index = image * (C // D) + c // D
    center = tl.load(mean + group_index)[None, :]
    w = (tl.load(weight + c).to(tl.float32) * tl.load(scale + group_index))[None, :]
    b = tl.load(bias + c).to(tl.float32)[None, :]
    begin = image.to(tl.int64) * lines * V
    end = tl.minimum(lines, (program + 1) * lines_per_program)
    for line in range(program * lines_per_program, end, ROWS):
        r = line + tl.arange(0, ROWS)
        offsets = begin + r[:, None] * V + v[None, :]
        mask = None if EVEN else _mask(r, end, v, V, BLOCK)
        output = (tl.load(x + offsets, mask).to(tl.float32) - center) * w + b
        if RESIDUAL:
            output += tl.load(residual + offsets, mask).to(tl.float32)
        if HAS_MINIMUM:
            output = tl.maximum(output, minimum, propagate_nan=tl.PropagateNan.ALL)
        if HAS_MAXIMUM:
            output = tl.minimum(output, maximum, propagate_nan=tl.PropagateNan.ALL)
        tl.store(outputs + offsets, output, mask)


@triton.jit
def _clamped_grad(
    g, centered, w, b, residual, offsets, mask, minimum, maximum,
    HAS_MINIMUM: tl.constexpr, HAS_MAXIMUM: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Return the gradient where the output is between the bounds, else 0; `b` is from `_centered_bias`."""
    if HAS_MINIMUM or HAS_MAXIMUM:
        output = centered * w + b
        if RESIDUAL:
            output += tl.load(residual + offsets, mask).to(tl.float32)
        if HAS_MINIMUM and HAS_MAXIMUM:
            g = tl.where(tl.abs(output) < (maximum - minimum) / 2, g, 0.0)
        elif HAS_MINIMUM:
            g = tl.where(output > minimum, g, 0.0)
        else:
            g = tl.where(output < maximum, g, 0.0)
    return g


@triton.jit
def _centered_bias(b, minimum, maximum, HAS_MINIMUM: tl.constexpr, HAS_MAXIMUM: tl.constexpr):
    """Shift the bias so that one comparison checks both bounds of an output."""
    return b - (minimum + maximum) / 2 if HAS_MINIMUM and HAS_MAXIMUM else b


@triton.jit
def _partial_grad_sums(
    grad, x, residual, mean, scale, weight, bias, partials, lines, lines_per_program, minimum, maximum,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, HAS_MAXIMUM: tl.constexpr, RESIDUAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    program, image = tl.program_id(1), tl.program_id(2)
    group_index = image * (C // D) + c // D
    center, inverse_std = tl.load(mean + group_index)[None, :], tl.load(scale + group_index)
    w = (tl.load(weight + c).to(tl.float32) * inverse_std)[None, :]
    b = _centered_bias(tl.load(bias + c).to(tl.float32)[None, :], minimum, maximum, HAS_MINIMUM, HAS_MAXIMUM)
    sum_1 = tl.zeros([ROWS, BLOCK], tl.float32)
    sum_2 = tl.zeros([ROWS, BLOCK], tl.float32)
    begin = image.to(tl.int64) * lines * V
    grad += begin
    x += begin
    residual += begin
    end = tl.minimum(lines, (program + 1) * lines_per_program)
    for line in tl.range(program * lines_per_program, end, ROWS, num_stages=STAGES):
        r = line + tl.arange(0, ROWS)
        offsets = r[:, None] * V + v[None, :]
        if EVEN:
            mask = None
            g, value = tl.load(grad + offsets).to(tl.float32), tl.load(x + offsets).to(tl.float32)
        else:
            mask = _mask(r, end, v, V, BLOCK)
            g, value = tl.load(grad + offsets, mask, 0).to(tl.float32), tl.load(x + offsets, mask, 0).to(tl.float32)
        centered = value - center
        g = _clamped_grad(
            g, centered, w, b, residual, offsets, mask, minimum, maximum, HAS_MINIMUM, HAS_MAXIMUM, RESIDUAL
        )
        sum_1 += g
        sum_2 += g * centered
    partials += (image * tl.num_programs(1) + program) * 2 * V
    tl.store(partials + v, tl.sum(sum_1, 0), v < V)
    tl.store(partials + V + v, tl.sum(sum_2, 0) * inverse_std, v < V)


@triton.jit
def _grad_means(
    partials, weight, sums, means, lines, count, C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    image, group = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    c = group * D + d
    sum_1, sum_2 = _sum_partials(partials + image * count * 2 * V + c, d < D, count, C, V, BLOCK)
    sums += image * 2 * C
    tl.store(sums + c, sum_1, d < D)
    tl.store(sums + C + c, sum_2, d < D)
    w = tl.load(weight + c, d < D, 0).to(tl.float32)
    groups = tl.num_programs(1)
    means += image * 2 * groups + group
    tl.store(means, tl.sum(sum_1 * w, 0) / (lines * (V // C) * D))
    tl.store(means + groups, tl.sum(sum_2 * w, 0) / (lines * (V // C) * D))


@triton.jit
def _write_grads(
    grad, x, residual, mean, scale, weight, bias, means, x_grad, residual_grad, lines, lines_per_program,
    minimum, maximum,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, HAS_MAXIMUM: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    program, image = tl.program_id(1), tl.program_id(2)
    group_index = image * (C // D) + c // D
    center, inverse_std = tl.load(mean + group_index)[None, :], tl.load(scale + group_index)[None, :]
    w = tl.load(weight + c).to(tl.float32)[None, :] * inverse_std
    b = _centered_bias(tl.load(bias + c).to(tl.float32)[None, :], minimum, maximum, HAS_MINIMUM, HAS_MAXIMUM)
    group_means = means + image * 2 * (C // D) + c // D
    mean_1 = tl.load(group_means)[None, :] * inverse_std
    mean_2 = tl.load(group_means + C // D)[None, :] * inverse_std * inverse_std
    begin = image.to(tl.int64) * lines * V
    end = tl.minimum(lines, (program + 1) * lines_per_program)
    for line in range(program * lines_per_program, end, ROWS):
        r = line + tl.arange(0, ROWS)
        offsets = begin + r[:, None] * V + v[None, :]
        mask = None if EVEN else _mask(r, end, v, V, BLOCK)
        g, value = tl.load(grad + offsets, mask).to(tl.float32), tl.load(x + offsets, mask).to(tl.float32)
        centered = value - center
        g = _clamped_grad(
            g, centered, w, b, residual, offsets, mask, minimum, maximum, HAS_MINIMUM, HAS_MAXIMUM, RESIDUAL
        )
        if RESIDUAL:
            tl.store(residual_grad + offsets, g, mask)
        tl.store(x_grad + offsets, w * g - (mean_1 + mean_2 * centered), mask)


def normalize(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None,
    groups: int, eps: float, minimum: float, maximum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute `manyeyes.models.fast.group_norm.normalize`."""
    images, lines, sizes, flags = _layout(x, groups, minimum, maximum, residual)
    mean, scale = (x.new_empty(images, groups, dtype=torch.float32) for _ in range(2))
    outputs = torch.empty_like(x)
    lines_per_program, grid = _grid(images, lines, sizes, SUM_PROGRAMS, MIN_SUM_TILES)
    partials = x.new_empty(images, grid[1], 2, sizes["V"], dtype=torch.float32)
    sum_sizes = {name: size for name, size in sizes.items() if name != "D"}
    _partial_moments[grid](x, partials, lines, lines_per_program, STAGES=PIPELINE_STAGES, **sum_sizes)
    _moments[images, groups](x, partials, mean, scale, lines, grid[1], eps, **_group_sizes(sizes))
    lines_per_program, grid = _grid(images, lines, sizes, WRITE_PROGRAMS, 1)
    inputs = x, x if residual is None else residual, mean, scale, weight, bias
    _write[grid](*inputs, outputs, lines, lines_per_program, minimum, maximum, **sizes, **flags)
    return outputs, mean, scale


def normalize_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, mean: Tensor, scale: Tensor,
    minimum: float, maximum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute `manyeyes.models.fast.group_norm.normalize_backward`."""
    groups = mean.shape[1]
    images, lines, sizes, flags = _layout(x, groups, minimum, maximum, residual)
    lines_per_program, grid = _grid(images, lines, sizes, SUM_PROGRAMS, MIN_SUM_TILES)
    partials = x.new_empty(images, grid[1], 2, sizes["V"], dtype=torch.float32)
    sums, means = (x.new_empty(images, 2, size, dtype=torch.float32) for size in (x.shape[1], groups))
    inputs = grad, x, x if residual is None else residual, mean, scale, weight, bias
    flags_of_sums = flags | {"STAGES": PIPELINE_STAGES}
    _partial_grad_sums[grid](*inputs, partials, lines, lines_per_program, minimum, maximum, **sizes, **flags_of_sums)
    _grad_means[images, groups](partials, weight, sums, means, lines, grid[1], **_group_sizes(sizes))
    x_grad, residual_grad = torch.empty_like(x), x.new_empty(0) if residual is None else torch.empty_like(residual)
    lines_per_program, grid = _grid(images, lines, sizes, WRITE_PROGRAMS, 1)
    outputs = x_grad, residual_grad
    _write_grads[grid](*inputs, means, *outputs, lines, lines_per_program, minimum, maximum, **sizes, **flags)
    return x_grad, residual_grad, sums


def _layout(
    x: Tensor, groups: int, minimum: float, maximum: float, residual: Tensor | None
) -> tuple[int, int, Sizes, dict[str, bool]]:
    """Return the number of images, the lines of each, and the constants that the kernels are compiled for."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    pixels_per_line = 1
    while channels * pixels_per_line % BLOCK_POSITIONS and not pixels % (2 * pixels_per_line):
        pixels_per_line *= 2
    line = channels * pixels_per_line
    power_of_2 = line & -line
    block = min(power_of_2, BLOCK_POSITIONS) if power_of_2 >= 16 else min(triton.next_power_of_2(line), 256)
    rows, lines = TILE_ELEMENTS // block, pixels // pixels_per_line
    is_even = line % block == 0 and lines % rows == 0
    sizes = {"C": channels, "V": line, "D": channels // groups, "ROWS": rows, "BLOCK": block, "EVEN": is_even}
    flags = {"HAS_MINIMUM": minimum > -torch.inf, "HAS_MAXIMUM": maximum < torch.inf, "RESIDUAL": residual is not None}
    return images, lines, sizes, flags


def _grid(images: int, lines: int, sizes: Sizes, num_programs: int, min_tiles: int) -> tuple[int, tuple[int, ...]]:
    """Return the lines of a program, and the number of programs by positions, lines and images."""
    blocks, rows = triton.cdiv(sizes["V"], sizes["BLOCK"]), sizes["ROWS"]
    tiles = max(triton.cdiv(lines, max(1, num_programs // (images * blocks)) * rows), min_tiles)
    return tiles * rows, (blocks, triton.cdiv(lines, tiles * rows), images)


def _group_sizes(sizes: Sizes) -> Sizes:
    """Return the constants that the kernels of a group are compiled for."""
    return {name: sizes[name] for name in "CVD"} | {"BLOCK": triton.next_power_of_2(sizes["D"]), "num_warps": 1}
