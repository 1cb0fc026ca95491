"""The one renderer of charts: a chart as SVG, for a page with a light and a dark theme, and for picture files."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from manyeyes.report.chart import Chart, Series
from manyeyes.report.scale import POINT_MARGIN, Scale, axis_range
from manyeyes.report.text import escape, shorten, text_width, wrap
from manyeyes.report.theme import LIGHT, PAGE, Theme

WIDTH, RIGHT, BOTTOM, LINE, PADDING = 640, 16, 44, 18, 12  # pixels
FONT_SIZE, TITLE_SIZE = 12, 14
MAX_LEGEND = 12  # series that are named
KEY_WIDTH, KEY_GAP = 22, 18  # of the sign before a name in the legend, and after the name
MAX_NAME_WIDTH = 210  # of a name below the x axis
PIXELS_PER_TICK = 60
POINT_SIZE, DENSE_POINT_SIZE, DENSE_POINTS = 7, 3, 500  # from the third number of points on, they are drawn smaller
BAR_FRACTION, MAX_BAR_WIDTH = 0.8, 60  # of the room of a bar, what it fills
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # of the first eight series, the next eight, ...

Point = tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """Where a chart is drawn, from its left to its right and from its base to its top, and in which colors."""

    x: Scale
    y: Scale
    height: int  # of the whole picture
    bar_gap: float  # between two bars, in values of x
    theme: Theme

    def color(self, series: Series) -> str:
        return self.theme.series[series.color % len(self.theme.series)]


def render_svg(chart: Chart, theme: Theme = LIGHT) -> str:
    """Return a chart as an SVG element: for a file with the theme `LIGHT` or `DARK`, for a page with `PAGE`."""
    chart = chart.downsample()
    chart = replace(chart, series=[series for series in chart.series if any(y is not None for y in series.y)])
    title = wrap(chart.title, WIDTH, TITLE_SIZE)
    legend = _legend_rows(chart.series[:MAX_LEGEND]) if len(chart.series) > 1 else []
    plot = _layout(chart, LINE * (len(title) + len(legend)) + 34, theme)
    bold = f'font-size="{TITLE_SIZE}" font-weight="600" fill="{theme.ink}"'
    parts = [_text(0, 15 + LINE * row, line, extra=bold) for row, line in enumerate(title)]
    for row, entries in enumerate(legend, len(title)):
        y = 15 + LINE * row
        parts += [_key(series, x, y - 4, plot) + _text(x + KEY_WIDTH, y, name) for series, name, x in entries]
    if (num_left := len(chart.series) - MAX_LEGEND) > 0:
        parts.append(_text(WIDTH, 15 + LINE * (len(title) + len(legend)), f"and {num_left} more", "end"))
    parts += _axes(chart, plot)
    all_bars = [series for series in chart.series if series.kind == "bars"]
    parts += [_bars(series, all_bars, plot) if series in all_bars else _curve(series, plot) for series in chart.series]
    parts += _reference_lines(chart, plot)
    label = f'role="img" aria-label="{escape(chart.title)}"'
    style = f'font-family="system-ui, sans-serif" font-size="{FONT_SIZE}" fill="{theme.soft}"'
    if theme == PAGE:
        return f'<svg viewBox="0 0 {WIDTH} {plot.height}" {label} {style}>{"".join(parts)}</svg>'
    left, width, height = -PADDING, WIDTH + 2 * PADDING, plot.height + 2 * PADDING
    size = f'viewBox="{left} {left} {width} {height}" width="{width}" height="{height}"'
    paper = f'<rect x="{left}" y="{left}" width="{width}" height="{height}" fill="{theme.paper}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label} {style}>{paper}{"".join(parts)}</svg>'


def _layout(chart: Chart, top: float, theme: Theme) -> Plot:
    """Place the plot below its header, with room for the labels of the ticks."""
    reference_lines, all_series = chart.reference_lines, chart.series
    all_bars = [series for series in all_series if series.kind == "bars"]
    are_points = bool(all_series) and all(series.kind == "points" for series in all_series)
    positions = [x for series in all_series for x in series.x] + _known(reference.x for reference in reference_lines)
    x_low, x_high = axis_range(chart.x, positions, POINT_MARGIN if are_points else 0.0)
    gap = min((b - a for series in all_bars for a, b in pairwise(series.x)), default=1.0)
    if all_bars:
        x_low, x_high = min(positions) - gap / 2, max(positions) + gap / 2
    values = [y for series in all_series for column in (series.y, series.low, series.high) for y in _known(column)]
    values += _known(reference.y for reference in reference_lines) + [0.0] * bool(all_bars)
    y = Scale(chart.y, *axis_range(chart.y, values, margin=0.05), top + chart.height, top)
    left = 16 + max((text_width(label) for _, label in y.ticks(chart.height // PIXELS_PER_TICK)), default=0.0)
    names = [shorten(name, MAX_NAME_WIDTH) for name in chart.x.names]
    longest = max(map(text_width, names), default=0.0)
    is_upright = longest > (WIDTH - RIGHT - left) / max(1, len(names)) - 6
    bottom = longest + 30 if is_upright and names else BOTTOM
    return Plot(Scale(chart.x, x_low, x_high, left, WIDTH - RIGHT), y, round(top + chart.height + bottom), gap, theme)


def _axes(chart: Chart, plot: Plot) -> list[str]:
    y_label = "" if chart.y.label.lower() == chart.title.lower() else chart.y.label
    x_label = chart.x.label + (" (logarithmic)" if chart.x.log and chart.x.label else "")
    parts = [
        _text(0, plot.y.end - 14, shorten(y_label, WIDTH)),
        _text(WIDTH - RIGHT, plot.height - 5, shorten(x_label, WIDTH - RIGHT), "end"),
    ]
    for y, label in plot.y.ticks(chart.height // PIXELS_PER_TICK):
        parts.append(f'<path d="M{plot.x.start:.1f},{y:.1f}H{WIDTH - RIGHT}" stroke="{plot.theme.grid}"/>')
        parts.append(_text(plot.x.start - 8, y + 4, label, "end"))
    parts.append(f'<path d="M{plot.x.start:.1f},{plot.y.start:.1f}H{WIDTH - RIGHT}" stroke="{plot.theme.axis}"/>')
    if chart.x.names:
        return parts + _name_ticks(chart.x.names, plot)
    for x, label in plot.x.ticks(7):
        parts.append(f'<path d="M{x:.1f},{plot.y.start:.1f}v4" stroke="{plot.theme.axis}"/>')
        parts.append(_text(min(x, WIDTH - text_width(label) / 2), plot.y.start + 17, label, "middle"))
    return parts


def _name_ticks(names: Sequence[str], plot: Plot) -> list[str]:
    """Write the names below their positions: upwards where they are long, and only some of very many."""
    parts, is_upright = [], plot.height - plot.y.start > BOTTOM + 1
    step = math.ceil(13 * len(names) / (WIDTH - RIGHT - plot.x.start))
    for i in range(0, len(names), step):
        name, x = shorten(names[i], MAX_NAME_WIDTH), plot.x(i)
        if is_upright:
            position = f"translate({x + 4:.1f} {plot.y.start + 8:.1f}) rotate(-90)"
            parts.append(f'<g transform="{position}">{_text(0, 0, name, "end")}</g>')
        else:
            parts.append(_text(x, plot.y.start + 17, name, "middle"))
    return parts


def _curve(series: Series, plot: Plot) -> str:
    """Draw a line with its band, or points."""
    points = [
        (plot.x(x), plot.y(y)) if y is not None and plot.x.can_show(x) and plot.y.can_show(y) else None
        for x, y in zip(series.x, series.y, strict=True)
    ]
    visible = [point for point in points if point is not None]
    if series.kind == "points" or len(visible) == 1:
        return _points(series, visible, plot)
    style = f'fill="none" stroke="{plot.color(series)}" stroke-width="2" stroke-linejoin="round"{_dash(series)}'
    return f'{_band(series, plot)}<path d="{_path(points, series.kind == "steps")}" {style}/>'


def _points(series: Series, points: Sequence[Point], plot: Plot) -> str:
    """Draw dots, or rings for a dashed series."""
    color = plot.color(series)
    if series.kind == "points" and series.dashed:
        rings = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points)
        return f'<g fill="none" stroke="{color}" stroke-width="1.75">{rings}</g>'
    dots = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in points)
    size = POINT_SIZE if len(points) < DENSE_POINTS else DENSE_POINT_SIZE
    halo = f'<path d="{dots}" stroke="{plot.theme.paper}" stroke-width="{size + 2}" stroke-linecap="round"/>'
    return f'{halo}<path d="{dots}" stroke="{color}" stroke-width="{size}" stroke-linecap="round"/>'


def _path(points: Iterable[Point | None], has_steps: bool) -> str:
    """Return the path of a line that is broken at gaps."""
    path, next_point = "", "H{:.1f}V{:.1f}" if has_steps else "L{:.1f},{:.1f}"
    for previous, point in pairwise([None, *points]):
        if point is not None:
            path += (next_point if previous else "M{:.1f},{:.1f}").format(*point)
    return path


def _band(series: Series, plot: Plot) -> str:
    edges = _intervals(series, plot)
    outline = [(x, high) for x, _, high in edges] + [(x, low) for x, low, _ in reversed(edges)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
    return f'<polygon points="{points}" fill="{plot.color(series)}" fill-opacity=".16"/>' if edges else ""


def _bars(series: Series, all_bars: Sequence[Series], plot: Plot) -> str:
    """Draw bars with their whiskers, next to the bars of other series."""
    room = plot.x(plot.x.low + plot.bar_gap) - plot.x.start
    width = min(MAX_BAR_WIDTH, max(1.0, BAR_FRACTION * room / len(all_bars)))
    offset = (all_bars.index(series) - len(all_bars) / 2) * width
    zero = plot.y(max(0.0, plot.y.low))
    bars = "".join(
        f"M{plot.x(x) + offset:.1f},{zero:.1f}V{plot.y(y):.1f}h{width:.1f}V{zero:.1f}Z"
        for x, y in zip(series.x, series.y, strict=True)
        if y is not None
    )
    middle = offset + width / 2
    whiskers = "".join(f"M{x + middle:.1f},{low:.1f}V{high:.1f}" for x, low, high in _intervals(series, plot))
    whiskers = f'<path d="{whiskers}" stroke="{plot.theme.ink}" stroke-width="1.5"/>' if whiskers else ""
    return f'<path d="{bars}" fill="{plot.color(series)}"/>{whiskers}'


def _intervals(series: Series, plot: Plot) -> list[tuple[float, float, float]]:
    columns = zip(series.x, series.low, series.high, strict=False)
    return [(plot.x(x), plot.y(low), plot.y(high)) for x, low, high in columns if low is not None and high is not None]


def _reference_lines(chart: Chart, plot: Plot) -> list[str]:
    """Draw lines across the plot and, above all lines, their labels: those of neighbors are apart."""
    lines, labels = [], []
    for number, reference in enumerate(chart.reference_lines):
        if reference.y is not None:
            y, is_left = plot.y(reference.y), number % 2 == 0
            line, label_y = f"M{plot.x.start:.1f},{y:.1f}H{WIDTH - RIGHT}", y - 5
            label_x, room = plot.x.start + 6 if is_left else WIDTH - RIGHT, WIDTH - RIGHT - plot.x.start - 6
        else:
            x = plot.x(reference.x or 0.0)
            is_left = x < (plot.x.start + WIDTH) / 2
            line, label_y = f"M{x:.1f},{plot.y.end:.1f}V{plot.y.start:.1f}", plot.y.end + 10 + 14 * number
            label_x, room = (x + 5, WIDTH - x - 5) if is_left else (x - 5, x - plot.x.start)
        halo = f'stroke="{plot.theme.paper}" stroke-width="3" paint-order="stroke"'
        lines.append(f'<path d="{line}" stroke="{plot.theme.soft}" stroke-dasharray="4 4"/>')
        labels.append(_text(label_x, label_y, shorten(reference.label, room), "start" if is_left else "end", halo))
    return lines + labels


def _legend_rows(all_series: Sequence[Series]) -> list[list[tuple[Series, str, float]]]:
    """Return the entries of the legend, row by row: the series, its name and its position."""
    rows: list[list[tuple[Series, str, float]]] = []
    end = math.inf
    for series in all_series:
        name = shorten(series.name, WIDTH - KEY_WIDTH)
        width = KEY_WIDTH + text_width(name)
        if end + width > WIDTH:
            rows.append([])
            end = 0
        rows[-1].append((series, name, end))
        end += width + KEY_GAP
    return rows


def _key(series: Series, x: float, y: float, plot: Plot) -> str:
    color = plot.color(series)
    if series.kind == "points":
        paint = f'fill="none" stroke="{color}" stroke-width="1.75"' if series.dashed else f'fill="{color}"'
        return f'<circle cx="{x + 7:.1f}" cy="{y}" r="3.5" {paint}/>'
    if series.kind == "bars":
        return f'<rect x="{x:.1f}" y="{y - 5}" width="14" height="10" rx="2" fill="{color}"/>'
    return f'<path d="M{x:.1f},{y}h16" stroke="{color}" stroke-width="3"{_dash(series)}/>'


def _dash(series: Series) -> str:
    dash = "5 4" if series.dashed else DASHES[series.color // len(LIGHT.series) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f"<text {attributes} {extra}>{escape(text)}</text>" if text else ""


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
