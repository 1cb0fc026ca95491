"""A chart: lines, points or bars as plain data, for the browser to draw, for a file of numbers and for a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyeyes.report.page import Table, escape, printable
from manyeyes.report.svg import render_svg

Numbers = Sequence[float | None]
MOST_ROWS = 40  # of the table below a chart
MOST_POINTS = 6000  # of all lines of a chart that is drawn; its CSV has all
LEAST_POINTS = 200  # of one


@dataclass(frozen=True)
class Axis:
    """What is measured along x or y; `names`: x counts from 0 and each number has a name."""

    label: str
    log: bool = False
    percent: bool = False
    low: float | None = None
    high: float | None = None
    names: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        found = {"label": self.label, "log": self.log, "percent": self.percent, "min": self.low, "max": self.high}
        return {
            k: v
            for k, v in (found | {"names": list(self.names)}).items()
            if v is not None and v is not False and v != []
        }

    def format(self, value: float | None) -> str:
        if value is None:
            return ""
        if self.names:
            return self.names[round(value)]
        return f"{100 * value:.1f} %" if self.percent else number(value)


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or row of bars; `colour` counts from 0, and `labels` name its points."""

    name: str
    x: Sequence[float]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    kind: str = "line"
    dashed: bool = False
    color: int = 0
    labels: Sequence[str] = ()

    def spec(self, most: int) -> dict[str, Any]:
        lists: dict[str, Numbers] = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        at = _extremes(self.y, most) if self.kind == "line" else range(len(self.x))
        found: dict[str, Any] = {name: short(some[i] for i in at) if some else [] for name, some in lists.items()}
        found |= {"labels": [printable(self.labels[i]) for i in at] if self.labels else [], "dashed": self.dashed}
        some = {k: v for k, v in found.items() if v not in ([], False)}
        return {"name": printable(self.name), "kind": self.kind, "colour": self.color, "x": [], "y": [], **some}


@dataclass(frozen=True)
class Chart:
    """A figure of the page: what a browser draws, or without scripts a still picture, and the numbers below it."""

    key: str  # its name as a file
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    caption: str
    marks: Sequence[dict[str, Any]] = ()
    height: int = 300

    def spec(self) -> dict[str, Any]:
        most = max(LEAST_POINTS, MOST_POINTS // max(1, len(self.series)))
        return {
            "title": printable(self.title),
            "x": self.x.spec(),
            "y": self.y.spec(),
            "series": [one.spec(most) for one in self.series],
            "marks": list(self.marks),
            "height": self.height,
        }

    def svg(self) -> str:
        return render_svg(self.spec())

    def csv(self) -> str:
        text = io.StringIO()
        named, banded = self._named, any(one.low for one in self.series)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["series", *["name"] * named, self.x.label, self.y.label, *["low", "high"] * banded])
        for one in self.series:
            for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
                name = [printable(one.labels[i] if one.labels else self.x.format(x))] if named else []
                band = [one.low[i], one.high[i]] if one.low else ["", ""] if banded else []
                writer.writerow([printable(one.name), *name, x, y, *band])
        return text.getvalue()

    def table(self) -> Table:
        head = ["", *["name"] * self._named, self.x.label, self.y.label]
        rows = []
        for one in self.series:
            step = math.ceil(len(one.x) * len(self.series) / MOST_ROWS) or 1
            for i in sorted({*range(0, len(one.x), step), len(one.x) - 1} - {-1}):
                name = [one.labels[i] if one.labels else self.x.format(one.x[i])] if self._named else []
                rows.append([one.name, *name, self.x.format(one.x[i]), self.y.format(one.y[i])])
        some = len(rows) < sum(len(one.x) for one in self.series)
        return Table(
            f"{self.title}{' (some of the numbers: manyeyes report --figures writes all)' if some else ''}", head, rows
        )

    def html(self) -> str:
        still = f"<noscript>{self.svg()}</noscript>"
        numbers = f"<details><summary>Numbers</summary>{self.table().html()}</details>"
        caption = f"<figcaption>{escape(self.caption)}</figcaption>"
        return f'<figure class="live" data-chart="{escape(self.key)}"><div></div>{still}{caption}{numbers}</figure>'

    @property
    def _named(self) -> bool:
        return bool(self.x.names) or any(one.labels for one in self.series)


@dataclass(frozen=True)
class Grid:
    """Charts side by side where there is room."""

    charts: Sequence[Chart]

    def html(self) -> str:
        three = " three" if len(self.charts) == 3 else ""
        return f'<div class="grid{three}">{"".join(chart.html() for chart in self.charts)}</div>'


def short(values: Iterable[float | None]) -> list[float | None]:
    """Numbers for JSON: six digits, and nothing where one is not finite."""
    return [_digits(value) if value is not None and math.isfinite(value) else None for value in values]


def _extremes(values: Numbers, most: int) -> Sequence[int]:
    """All places of a line, or of a long one those of each stretch's least and largest values, and both ends."""
    count = len(values)
    if count <= most:
        return range(count)
    known = np.array([math.nan if value is None else value for value in values])
    kept = {0, count - 1}
    for some in np.array_split(np.arange(count), most // 2):
        there = some[np.isfinite(known[some])]
        kept |= {int(there[known[there].argmin()]), int(there[known[there].argmax()])} if len(there) else {int(some[0])}
    return sorted(kept)


def number(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _digits(value: float) -> float:
    rounded = float(f"{value:.6g}") if abs(value) < 1e6 else float(f"{value:.9g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
