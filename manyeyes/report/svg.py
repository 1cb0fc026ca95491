"""A chart as a still SVG: for a file, for a paper, and for a page whose scripts are off."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from manyeyes.report.page import escape

COLORS = ("#0072b2", "#d55e00", "#00855f", "#b8528f", "#9a7200", "#3f8fd0", "#30363d", "#7a5cc8")  # as charts.css
WIDTH, LEFT, RIGHT, BOTTOM, LINE = 640, 62, 22, 42, 18
LONGEST = 32  # letters of a name on the axis
MOST = 600  # points of a line; each stretch keeps its least and largest
Place = Callable[[float], float]


def render_svg(spec: dict[str, Any]) -> str:
    """The SVG, in light colours on white."""
    series = [one for one in spec["series"] if any(y is not None for y in one["y"])]
    named = series if len(spec["series"]) > 1 else []
    top = 46 + LINE * len(named)
    names = [f"{name[: LONGEST - 1]}…" if len(name) > LONGEST else name for name in spec["x"].get("names", ())]
    longest = 6.6 * max(map(len, names), default=0)
    upwards = bool(names) and longest > (WIDTH - LEFT) / len(names) - 6  # names too long to stand side by side
    bottom = longest + 28 if upwards else BOTTOM
    height = round(spec["height"] + LINE * len(named) + bottom - BOTTOM)
    x0, x1 = _range(spec["x"], [x for one in series for x in one["x"]] + [m["x"] for m in spec["marks"] if "x" in m])
    gap = min((b - a for one in series if one["kind"] == "bars" for a, b in pairwise(one["x"])), default=0.0)
    x0, x1 = x0 - gap / 2, x1 + gap / 2
    seen = [y for one in series for key in ("y", "low", "high") for y in one.get(key, ()) if y is not None]
    bars = [one for one in series if one["kind"] == "bars"]
    y0, y1 = _range(spec["y"], seen + [m["y"] for m in spec["marks"] if "y" in m] + [0.0] * bool(bars), 0.05)
    x = _scale(x0, x1, LEFT, WIDTH - RIGHT, "log" in spec["x"])
    y = _scale(y0, y1, height - bottom, top, "log" in spec["y"])
    parts = [f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', _text(0, 18, spec["title"], bold=True)]
    for n, one in enumerate(named):
        parts.append(_legend_key(one, 30 + LINE * n))
        parts.append(_text(22, 34 + LINE * n, one["name"]))
    label = spec["y"].get("label", "")
    parts += [
        _text(0, top - 10, "" if label.lower() == spec["title"].lower() else label),
        _text(WIDTH - RIGHT, height - 4, _under(spec), "end"),
    ]
    for value in ticks(y0, y1, 5, "log" in spec["y"]):
        words = f"{100 * value:.4g} %" if spec["y"].get("percent") else f"{value:,.10g}"
        parts.append(f'<path d="M{LEFT},{y(value):.1f}H{WIDTH - RIGHT}" stroke="#e8ecf0"/>')
        parts.append(_text(LEFT - 8, y(value) + 4, words, "end"))
    base = height - bottom
    for value in _visible_ticks(names, x0, x1) if names else ticks(x0, x1, 7, "log" in spec["x"]):
        words = names[int(value)] if names else f"{value:,.10g}"
        if upwards:
            parts.append(f'<g transform="translate({x(value) + 4:.1f} {base + 8:.1f}) rotate(-90)">')
            parts.append(f"{_text(0, 0, words, 'end')}</g>")
        else:
            parts.append(_text(x(value), base + 17, words, "middle"))
    parts.append(f'<path d="M{LEFT},{base:.1f}H{WIDTH - RIGHT}" stroke="#8c959f"/>')
    for one in series:
        parts.append(_draw_bars(one, bars, x, y, y0, gap, x0) if one in bars else _draw_series(one, x, y))
    for mark in spec["marks"]:
        where = (
            f"M{LEFT},{y(mark['y']):.1f}H{WIDTH - RIGHT}" if "y" in mark else f"M{x(mark['x']):.1f},{top}V{base:.1f}"
        )
        parts.append(f'<path d="{where}" stroke="#57606a" stroke-dasharray="4 4"/>')
        a, b = (LEFT + 6, y(mark["y"]) - 5) if "y" in mark else (x(mark["x"]) + 5, top + 10)
        parts.append(_text(a, b, mark.get("label", "")))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(spec["title"])}">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, count: int, log: bool = False) -> list[float]:
    """Round values between two, about so many."""
    if log and high / low >= 8:
        decades = math.log10(high / low)
        steps, jump = ([1, 2, 5] if decades < 2.5 else [1]), max(1, math.ceil(decades / count))
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1, jump)
        found = [step * 10.0**power for power in powers for step in steps]
        return [value for value in found if low * 0.9999 <= value <= high * 1.0001]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((each * power for each in (1, 2, 5) if each * power >= rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _range(axis: dict[str, Any], values: list[float], spare: float = 0.0) -> tuple[float, float]:
    if "log" in axis:
        values = [value for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (1.0, 10.0) if "log" in axis else (0.0, 1.0)
    if "log" in axis:
        low, high = (low / 2, high * 2) if low == high else (low, high)
    else:
        room = (high - low) * spare or (0.5 if low == high else 0.0)
        low, high = (0.0 if low == 0 or 0 < low < room else low - room), high + room
    low, high = axis.get("min", low), axis.get("max", high)
    return (low, high) if high > low else (low, low + 1)


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Place:
    a, b = (math.log10(low), math.log10(high)) if log else (low, high)
    return lambda value: start + ((math.log10(max(value, low)) if log else value) - a) * (end - start) / (b - a)


def _draw_series(one: dict[str, Any], x: Place, y: Place) -> str:
    """A line with its band, broken where there is nothing, or points."""
    there = [(x(a), y(b)) if b is not None else None for a, b in zip(one["x"], one["y"], strict=True)]
    if one["kind"] == "points" and one.get("dashed"):
        rings = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in filter(None, there))
        return f'<g fill="none" stroke="{_colour(one)}" stroke-width="1.75">{rings}</g>'
    if one["kind"] == "points":
        dots = "".join(f"M{a:.1f},{b:.1f}h0" for a, b in filter(None, there))
        return (
            f'<path d="{dots}" stroke="{_colour(one)}" stroke-width="7" stroke-linecap="round" stroke-opacity=".75"/>'
        )
    shape, pen = "", "M"
    for place in _thinned(there):
        shape += "" if place is None else f"{pen}{place[0]:.1f},{place[1]:.1f}"
        pen = "M" if place is None else "L"
    dash = ' stroke-dasharray="5 4"' if _is_dashed(one) else ""
    band = ""
    if one.get("low"):
        edges = [
            (x(a), y(b), y(c)) for a, b, c in zip(one["x"], one["low"], one["high"], strict=True) if None not in (b, c)
        ]
        around = [(a, c) for a, _, c in edges] + [(a, b) for a, b, _ in reversed(edges)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in around)
        band = f'<polygon points="{points}" fill="{_colour(one)}" fill-opacity=".16"/>'
    return (
        f'{band}<path d="{shape}" fill="none" stroke="{_colour(one)}" stroke-width="2" stroke-linejoin="round"{dash}/>'
    )


def _thinned(there: list[tuple[float, float] | None]) -> list[tuple[float, float] | None]:
    if len(there) <= MOST:
        return there
    kept: list[tuple[float, float] | None] = []
    size = math.ceil(2 * len(there) / MOST)
    for start in range(0, len(there), size):
        some = [place for place in there[start : start + size] if place is not None]
        kept += sorted({min(some, key=lambda p: p[1]), max(some, key=lambda p: p[1])}) if some else [None]
    return kept


def _draw_bars(one: dict[str, Any], bars: list[Any], x: Place, y: Place, y0: float, gap: float, x0: float) -> str:
    wide = max(1.0, 0.8 * (x(x0 + gap) - x(x0) if gap else 40) / len(bars))
    shift, zero = (bars.index(one) - len(bars) / 2) * wide, y(max(0.0, y0))
    each = ((x(a) + shift, y(b)) for a, b in zip(one["x"], one["y"], strict=True) if b is not None)
    shape = "".join(f"M{a:.1f},{zero:.1f}V{b:.1f}h{wide:.1f}V{zero:.1f}Z" for a, b in each)
    bands = zip(one["x"], one.get("low", ()), one.get("high", ()), strict=False)
    spread = "".join(f"M{x(a) + shift + wide / 2:.1f},{y(b):.1f}V{y(c):.1f}" for a, b, c in bands if None not in (b, c))
    whiskers = f'<path d="{spread}" stroke="#1b1f24" stroke-width="1.5"/>' if spread else ""
    return f'<path d="{shape}" fill="{_colour(one)}"/>{whiskers}'


def _legend_key(one: dict[str, Any], y: int) -> str:
    """What a series looks like, before its name."""
    if one["kind"] == "points":
        ink = (
            f'fill="none" stroke-width="1.75" stroke="{_colour(one)}"'
            if one.get("dashed")
            else f'fill="{_colour(one)}"'
        )
        return f'<circle cx="7" cy="{y}" r="3.5" {ink}/>'
    dash = ' stroke-dasharray="5 4"' if _is_dashed(one) else ""
    return f'<path d="M0,{y}h14" stroke="{_colour(one)}" stroke-width="4"{dash}/>'


def _is_dashed(one: dict[str, Any]) -> bool:
    return bool(one.get("dashed")) or one["colour"] >= len(COLORS)


def _text(x: float, y: float, words: str, anchor: str = "start", bold: bool = False) -> str:
    look = 'font-weight="600" font-size="14" fill="#1b1f24"' if bold else 'font-size="12" fill="#57606a"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-family="system-ui, sans-serif"'
    return f"<text {place} {look}>{escape(words)}</text>"


def _under(spec: dict[str, Any]) -> str:
    return spec["x"].get("label", "") + (" (logarithmic)" if "log" in spec["x"] else "")


def _visible_ticks(names: list[str], x0: float, x1: float) -> list[float]:
    """All of them, or of many as many as have room."""
    every = math.ceil(13 * len(names) / (WIDTH - LEFT))
    return [float(i) for i in range(0, len(names), every) if x0 <= i <= x1]


def _colour(one: dict[str, Any]) -> str:
    return COLORS[one["colour"] % len(COLORS)]
