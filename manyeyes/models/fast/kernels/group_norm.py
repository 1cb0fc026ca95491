"""GroupNorm, a sum and a clamp of images that lie [N, HW, C] in memory, and its gradient, in Triton.

Three kernels each way. A program of the first sums a part of an image for some places, in an order that the shapes
alone decide; one of the second adds the parts and the channels of a group; one of the third writes a part of what comes
out. An image is read as lines of V places: so many pixels of C channels that V is a multiple of a power of two, which
a program takes as they lie. Axes: N images, HW pixels, C channels, G groups of D channels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers that a program reads at a time
WIDE = 64  # places of a line that it takes, where they can be as many
SUMMING, WRITING = 512, 16384  # programs wanted
LEAST = 8  # tiles that a program sums at least
STAGES = 4  # tiles that are on their way while one is summed


@triton.jit
def _moment_parts(
    x, parts, lines, part,
    C: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number, image = tl.program_id(1), tl.program_id(2)
    x += image.to(tl.int64) * lines * V
    middle = tl.load(x + v % C).to(tl.float32)[None, :]
    first = tl.zeros([ROWS, BLOCK], tl.float32)
    second = tl.zeros([ROWS, BLOCK], tl.float32)
    end = tl.minimum(lines, (number + 1) * part)
    for line in tl.range(number * part, end, ROWS, num_stages=STAGES):
        r = line + tl.arange(0, ROWS)
        at = r[:, None] * V + v[None, :]
        if EVEN:
            value = tl.load(x + at).to(tl.float32) - middle
        else:
            inside = _inside(r, end, v, V, BLOCK)
            value = tl.where(inside, tl.load(x + at, inside, 0).to(tl.float32) - middle, 0.0)
        first += value
        second += value * value
    parts += (image * tl.num_programs(1) + number) * 2 * V
    tl.store(parts + v, tl.sum(first, 0), v < V)
    tl.store(parts + V + v, tl.sum(second, 0), v < V)


@triton.jit
def _inside(r, end, v, V: tl.constexpr, BLOCK: tl.constexpr):
    return (r < end)[:, None] if V % BLOCK == 0 else (r < end)[:, None] & (v < V)[None, :]


@triton.jit
def _moments(
    x, parts, mean, scale, lines, count, eps, C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    image, group = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    c = group * D + d
    first, second = _add_parts(parts + image * count * 2 * V + c, d < D, count, C, V, BLOCK)
    pixels = lines * (V // C)
    means = tl.load(x + image.to(tl.int64) * lines * V + c, d < D, 0).to(tl.float32) + first / pixels
    squares = tl.maximum(second - first * first / pixels, 0.0)
    whole = tl.sum(tl.where(d < D, means, 0.0), 0) / D
    apart = tl.where(d < D, means - whole, 0.0)
    variance = (tl.sum(squares, 0) / pixels + tl.sum(apart * apart, 0)) / D
    place = image * tl.num_programs(1) + group
    tl.store(mean + place, whole)
    tl.store(scale + place, 1 / tl.sqrt(variance + eps))


@triton.jit
def _add_parts(parts, real, count, C: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr):
    """Both sums of some channels, over all parts and the pixels of a line."""
    first = tl.zeros([8, BLOCK], tl.float32)
    second = tl.zeros([8, BLOCK], tl.float32)
    for number in range(0, count * (V // C), 8):
        n = number + tl.arange(0, 8)[:, None]
        inside = (n < count * (V // C)) & real[None, :]
        at = parts[None, :] + n // (V // C) * 2 * V + n % (V // C) * C
        first += tl.load(at, inside, 0)
        second += tl.load(at + V, inside, 0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _write(
    x, around, mean, scale, weight, bias, outputs, lines, part, low, high,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, AROUND: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    number, image = tl.program_id(1), tl.program_id(2)
    place = image * (C // D) + c // D
    centre = tl.load(mean + place)[None, :]
    w = (tl.load(weight + c).to(tl.float32) * tl.load(scale + place))[None, :]
    b = tl.load(bias + c).to(tl.float32)[None, :]
    begin = image.to(tl.int64) * lines * V
    end = tl.minimum(lines, (number + 1) * part)
    for line in range(number * part, end, ROWS):
        r = line + tl.arange(0, ROWS)
        at = begin + r[:, None] * V + v[None, :]
        inside = None if EVEN else _inside(r, end, v, V, BLOCK)
        output = (tl.load(x + at, inside).to(tl.float32) - centre) * w + b
        if AROUND:
            output += tl.load(around + at, inside).to(tl.float32)
        if LOW:
            output = tl.maximum(output, low, propagate_nan=tl.PropagateNan.ALL)
        if HIGH:
            output = tl.minimum(output, high, propagate_nan=tl.PropagateNan.ALL)
        tl.store(outputs + at, output, inside)


@triton.jit
def _passed(
    back, away, w, b, around, at, inside, low, high, LOW: tl.constexpr, HIGH: tl.constexpr, AROUND: tl.constexpr
):
    """The slope where the output lies between the bounds, else 0; `b` is what `_shifted` made of it."""
    if LOW or HIGH:
        output = away * w + b
        if AROUND:
            output += tl.load(around + at, inside).to(tl.float32)
        if LOW and HIGH:
            back = tl.where(tl.abs(output) < (high - low) / 2, back, 0.0)
        elif LOW:
            back = tl.where(output > low, back, 0.0)
        else:
            back = tl.where(output < high, back, 0.0)
    return back


@triton.jit
def _shifted(b, low, high, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Such that one comparison tells whether an output lies between two bounds."""
    return b - (low + high) / 2 if LOW and HIGH else b


@triton.jit
def _slope_parts(
    slope, x, around, mean, scale, weight, bias, parts, lines, part, low, high,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, AROUND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    number, image = tl.program_id(1), tl.program_id(2)
    place = image * (C // D) + c // D
    centre, width = tl.load(mean + place)[None, :], tl.load(scale + place)
    w = (tl.load(weight + c).to(tl.float32) * width)[None, :]
    b = _shifted(tl.load(bias + c).to(tl.float32)[None, :], low, high, LOW, HIGH)
    first = tl.zeros([ROWS, BLOCK], tl.float32)
    second = tl.zeros([ROWS, BLOCK], tl.float32)
    begin = image.to(tl.int64) * lines * V
    slope += begin
    x += begin
    around += begin
    end = tl.minimum(lines, (number + 1) * part)
    for line in tl.range(number * part, end, ROWS, num_stages=STAGES):
        r = line + tl.arange(0, ROWS)
        at = r[:, None] * V + v[None, :]
        if EVEN:
            inside = None
            back, value = tl.load(slope + at).to(tl.float32), tl.load(x + at).to(tl.float32)
        else:
            inside = _inside(r, end, v, V, BLOCK)
            back, value = tl.load(slope + at, inside, 0).to(tl.float32), tl.load(x + at, inside, 0).to(tl.float32)
        away = value - centre
        back = _passed(back, away, w, b, around, at, inside, low, high, LOW, HIGH, AROUND)
        first += back
        second += back * away
    parts += (image * tl.num_programs(1) + number) * 2 * V
    tl.store(parts + v, tl.sum(first, 0), v < V)
    tl.store(parts + V + v, tl.sum(second, 0) * width, v < V)


@triton.jit
def _slopes(
    parts, weight, sums, means, lines, count, C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    image, group = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    c = group * D + d
    first, second = _add_parts(parts + image * count * 2 * V + c, d < D, count, C, V, BLOCK)
    sums += image * 2 * C
    tl.store(sums + c, first, d < D)
    tl.store(sums + C + c, second, d < D)
    w = tl.load(weight + c, d < D, 0).to(tl.float32)
    groups = tl.num_programs(1)
    means += image * 2 * groups + group
    tl.store(means, tl.sum(first * w, 0) / (lines * (V // C) * D))
    tl.store(means + groups, tl.sum(second * w, 0) / (lines * (V // C) * D))


@triton.jit
def _write_back(
    slope, x, around, mean, scale, weight, bias, means, back_x, back_around, lines, part, low, high,
    C: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, AROUND: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = v % C
    number, image = tl.program_id(1), tl.program_id(2)
    place = image * (C // D) + c // D
    centre, width = tl.load(mean + place)[None, :], tl.load(scale + place)[None, :]
    w = tl.load(weight + c).to(tl.float32)[None, :] * width
    b = _shifted(tl.load(bias + c).to(tl.float32)[None, :], low, high, LOW, HIGH)
    both = means + image * 2 * (C // D) + c // D
    first = tl.load(both)[None, :] * width
    second = tl.load(both + C // D)[None, :] * width * width
    begin = image.to(tl.int64) * lines * V
    end = tl.minimum(lines, (number + 1) * part)
    for line in range(number * part, end, ROWS):
        r = line + tl.arange(0, ROWS)
        at = begin + r[:, None] * V + v[None, :]
        inside = None if EVEN else _inside(r, end, v, V, BLOCK)
        back, value = tl.load(slope + at, inside).to(tl.float32), tl.load(x + at, inside).to(tl.float32)
        away = value - centre
        back = _passed(back, away, w, b, around, at, inside, low, high, LOW, HIGH, AROUND)
        if AROUND:
            tl.store(back_around + at, back, inside)
        tl.store(back_x + at, w * back - (first + second * away), inside)


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, groups: int, eps: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See `group_norm.normalise`."""
    images, lines, sizes, kinds = _shape(x, groups, low, high, around)
    mean, scale = (x.new_empty(images, groups, dtype=torch.float32) for _ in range(2))
    outputs = torch.empty_like(x)
    part, grid = _shares(images, lines, sizes, SUMMING, LEAST)
    parts = x.new_empty(images, grid[1], 2, sizes["V"], dtype=torch.float32)
    summed = {name: size for name, size in sizes.items() if name != "D"}
    _moment_parts[grid](x, parts, lines, part, STAGES=STAGES, **summed)
    _moments[images, groups](x, parts, mean, scale, lines, grid[1], eps, **_groups(sizes))
    part, grid = _shares(images, lines, sizes, WRITING, 1)
    beside = x if around is None else around
    _write[grid](x, beside, mean, scale, weight, bias, outputs, lines, part, low, high, **sizes, **kinds)
    return outputs, mean, scale


def normalise_back(
    slope: Tensor, x: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, mean: Tensor, scale: Tensor,
    low: float, high: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `group_norm.normalise_back`."""
    groups = mean.shape[1]
    images, lines, sizes, kinds = _shape(x, groups, low, high, around)
    part, grid = _shares(images, lines, sizes, SUMMING, LEAST)
    parts = x.new_empty(images, grid[1], 2, sizes["V"], dtype=torch.float32)
    sums, means = (x.new_empty(images, 2, each, dtype=torch.float32) for each in (x.shape[1], groups))
    numbers = slope, x, x if around is None else around, mean, scale, weight, bias
    _slope_parts[grid](*numbers, parts, lines, part, low, high, STAGES=STAGES, **sizes, **kinds)
    _slopes[images, groups](parts, weight, sums, means, lines, grid[1], **_groups(sizes))
    back, back_around = torch.empty_like(x), x.new_empty(0) if around is None else torch.empty_like(around)
    part, grid = _shares(images, lines, sizes, WRITING, 1)
    _write_back[grid](*numbers, means, back, back_around, lines, part, low, high, **sizes, **kinds)
    return back, back_around, sums


def _shape(
    x: Tensor, groups: int, low: float, high: float, around: Tensor | None
) -> tuple[int, int, dict[str, int], dict[str, bool]]:
    """The number of images, the lines of each, and what the kernels are compiled for."""
    images, channels, pixels = len(x), x.shape[1], x.shape[2] * x.shape[3]
    fold = 1
    while channels * fold % WIDE and not pixels % (2 * fold):
        fold *= 2
    line = channels * fold
    power = line & -line
    block = min(power, WIDE) if power >= 16 else min(triton.next_power_of_2(line), 256)
    rows, lines = TILE // block, pixels // fold
    even = line % block == 0 and lines % rows == 0
    sizes = {"C": channels, "V": line, "D": channels // groups, "ROWS": rows, "BLOCK": block, "EVEN": even}
    return images, lines, sizes, {"LOW": low > -torch.inf, "HIGH": high < torch.inf, "AROUND": around is not None}


def _shares(images: int, lines: int, sizes: dict[str, int], wanted: int, least: int) -> tuple[int, tuple[int, ...]]:
    """Lines of a program, at least so many tiles; and how many programs there are, by places, lines and images."""
    blocks, rows = triton.cdiv(sizes["V"], sizes["BLOCK"]), sizes["ROWS"]
    tiles = max(triton.cdiv(lines, max(1, wanted // (images * blocks)) * rows), least)
    return tiles * rows, (blocks, triton.cdiv(lines, tiles * rows), images)


def _groups(sizes: dict[str, int]) -> dict[str, int]:
    """What the kernels of a group are compiled for."""
    return {name: sizes[name] for name in "CVD"} | {"BLOCK": triton.next_power_of_2(sizes["D"]), "num_warps": 1}
