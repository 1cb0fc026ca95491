"""A chart as a PNG, for pages that show no SVG."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from manyeyes.report.chart import Chart, Numbers, Series
from manyeyes.report.figures import logarithmic, new_figure, render, wrap_title
from manyeyes.report.svg import COLORS

MANY = 12  # points of a line, from which on they are not marked


def png(chart: Chart) -> bytes:
    series = [one for one in chart.series if any(y is not None for y in one.y)]
    names = 0.055 * max(map(len, chart.x.names), default=0)  # inches that they stand high below the axis
    figure = new_figure(3.8 + 0.2 * (len(chart.title) // 56) + 0.09 * min(len(series), 24) + max(0.0, names - 0.5))
    axes = figure.subplots()
    axes.set_title(wrap_title(chart.title), fontsize=11, loc="left", parse_math=False)
    axes.set(xlabel=chart.x.label, ylabel=chart.y.label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    bars = [one for one in series if one.kind == "bars"]
    for one in series:
        _draw(axes, one, bars)
    for mark in chart.marks:
        if "y" in mark:
            axes.axhline(mark["y"], color="0.35", linestyle="--", linewidth=1)
            axes.annotate(mark["label"], (0.01, mark["y"]), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    if chart.marks:
        axes.margins(y=0.12)  # room for the words above a line across
    if chart.x.names:
        axes.set_xticks(range(len(chart.x.names)), chart.x.names, rotation=90, fontsize=7)
        beside = 0.6 + max(0, 6 - len(chart.x.names)) / 2  # a few bars are no wider than some
        axes.set_xlim(-beside, len(chart.x.names) - 1 + beside)
    for axis, which in ((chart.x, "x"), (chart.y, "y")):
        if axis.log and any(v for one in series for v in _numbers(getattr(one, which)) if v > 0):
            logarithmic(axes, which)
    if chart.y.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(series) > 1:
        figure.legend(loc="outside lower left", ncols=2, fontsize=7, frameon=False)
    return render(figure, "png")


def _draw(axes: Axes, one: Series, bars: list[Series]) -> None:
    colour, x, y = COLORS[one.color % len(COLORS)], list(one.x), _numbers(one.y)
    if one.kind == "bars":
        width = 0.8 / len(bars)
        places = [at + width * (bars.index(one) - (len(bars) - 1) / 2) for at in x]
        axes.bar(places, y, width, color=colour, label=one.name)
        for place, low, high in zip(places, _numbers(one.low), _numbers(one.high), strict=False):
            axes.plot([place, place], [low, high], color="0.3", linewidth=1.2)
    elif one.kind == "points":
        axes.plot(x, y, "o", color=colour, label=one.name, fillstyle="none" if one.dashed else "full")
    else:
        marker = "o" if len(x) < MANY else ""
        axes.plot(x, y, "--" if one.dashed else "-", marker=marker, markersize=4, color=colour, label=one.name)
        if one.low:
            axes.fill_between(x, _numbers(one.low), _numbers(one.high), color=colour, alpha=0.15, linewidth=0)


def _numbers(values: Numbers) -> list[float]:
    return [math.nan if value is None else value for value in values]
