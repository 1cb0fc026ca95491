"""A chart as data: what is drawn on a page and in a picture, and written as CSV and as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from manyeyes.report.downsample import downsample_minmax
from manyeyes.report.table import Table
from manyeyes.report.text import format_value, printable

Numbers = Sequence[float | None]  # None where a curve has a gap
Kind = Literal["line", "steps", "points", "bars"]
MAX_TABLE_ROWS = 40
MAX_POINTS = 3000  # of all lines of a chart that is drawn; its CSV file has all points
MIN_LINE_POINTS = 150
EPS = 1e-9  # stands for values that a logarithmic axis cannot show


@dataclass(frozen=True)
class Axis:
    """What is measured along x or y."""

    label: str = ""
    log: bool = False
    percent: bool = False  # whether fractions are shown as percentages
    integer: bool = False  # whether values are integers, such as rounds
    low: float | None = None  # where the axis starts, if not at the smallest value
    high: float | None = None
    ticks: tuple[float, ...] = ()  # instead of round values
    names: tuple[str, ...] = ()  # of x = 0, 1, 2, ...

    def format(self, value: float | None) -> str:
        if self.names and value is not None:
            return printable(self.names[round(value)])
        return format_value(value, self.percent)


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or row of bars. `steps` are a line that is level up to the next x."""

    name: str
    x: Sequence[float]
    y: Numbers
    low: Numbers = ()  # of a band around a line, or of the whisker of a bar
    high: Numbers = ()
    kind: Kind = "line"
    dashed: bool = False  # of points: hollow
    color: int = 0  # index into the palette
    labels: Sequence[str] = ()  # of its points

    def downsample(self, max_points: int, log_x: bool) -> Series:
        if self.kind not in ("line", "steps") or len(self.x) <= max_points:
            return self
        positions = np.log(np.maximum(self.x, EPS)) if log_x else self.x
        values = np.array(self.y, np.float64)  # None becomes NaN
        indices = downsample_minmax(positions, values, max_points).tolist()
        columns = {name: getattr(self, name) for name in ("x", "y", "low", "high", "labels")}
        picked: dict[str, Any] = {name: [column[i] for i in indices] for name, column in columns.items() if len(column)}
        return replace(self, **picked)


@dataclass(frozen=True)
class ReferenceLine:
    """A dashed line across the chart, at a value of y or of x."""

    label: str
    y: float | None = None
    x: float | None = None


@dataclass(frozen=True)
class Chart:
    """A figure of a page. `render_svg` draws it, `write_chart` writes it to a file."""

    name: str  # of its files
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    caption: str = ""
    reference_lines: Sequence[ReferenceLine] = ()
    height: int = 300  # pixels, without title and legend
    metric: str = ""  # whose curves the page has anyway, for the reader to choose from
    caveat: str = ""  # caveats of the data: in the title, and in a column of the CSV file

    def with_caveat(self, text: str) -> Chart:
        """Return the chart that says something of its data, wherever it is shown; an empty text changes nothing."""
        return replace(self, title=f"{self.title} ({text})", caveat=text) if text else self

    def downsample(self, max_chart_points: int = MAX_POINTS) -> Chart:
        min_points = MIN_LINE_POINTS * max_chart_points // MAX_POINTS
        max_points = max(min_points, max_chart_points // max(1, len(self.series)))
        return replace(self, series=[series.downsample(max_points, self.x.log) for series in self.series])

    def to_dict(self) -> dict[str, Any]:
        """Return what the script of a page draws, as plain data without defaults."""
        return {
            "title": printable(self.title),
            "height": self.height,
            "x": _plain(self.x),
            "y": _plain(self.y),
            "series": [_plain(series) for series in self._page_series()],
            **({"metric": self.metric} if self.metric else {}),
            "reference_lines": [_plain(reference) for reference in self.reference_lines],
        }

    def _page_series(self) -> Sequence[Series]:
        """Return the series that the script of a page draws; curves that the page has anyway are only named."""
        if not self.metric:
            return self.downsample().series
        return [replace(series, x=(), y=(), low=(), high=()) for series in self.series]

    def csv(self) -> str:
        text = io.StringIO()
        has_names, has_bands = self._has_names, any(series.low for series in self.series)
        writer = csv.writer(text, lineterminator="\n")
        data_header, data_cell = (["data"], [printable(self.caveat)]) if self.caveat else ([], [])
        header = ["series", *["name"] * has_names, self.x.label, self.y.label, *["low", "high"] * has_bands]
        writer.writerow([*header, *data_header])
        for series in self.series:
            for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                band = [series.low[i], series.high[i]] if series.low else ["", ""] if has_bands else []
                writer.writerow([printable(series.name), *self._point_name(series, i), x, y, *band, *data_cell])
        return text.getvalue()

    def table(self) -> Table:
        """Return the points, or some of many, for a page."""
        header = ["", *["name"] * self._has_names, self.x.label, self.y.label]
        rows, num_points = [], sum(len(series.x) for series in self.series)
        for series in self.series:
            step = math.ceil(len(series.x) * len(self.series) / MAX_TABLE_ROWS) or 1
            for i in sorted({*range(0, len(series.x), step), len(series.x) - 1} - {-1}):
                values = [self.x.format(series.x[i]), self.y.format(series.y[i])]
                rows.append([series.name, *self._point_name(series, i), *values])
        note = " (a selection; the CSV file has all points)" if len(rows) < num_points else ""
        return Table(f"{self.title}{note}", header, rows)

    @property
    def _has_names(self) -> bool:
        return bool(self.x.names) or any(series.labels for series in self.series)

    def _point_name(self, series: Series, index: int) -> list[str]:
        if not self._has_names:
            return []
        return [printable(series.labels[index]) if series.labels else self.x.format(series.x[index])]


def make_series(
    columns: Mapping[str, tuple[ArrayLike, ArrayLike]], kind: Kind = "line", labels: Sequence[str] = ()
) -> list[Series]:
    """Return a series of each x and y, in the colors of the palette."""
    return [
        Series(name, np.asarray(x).tolist(), np.asarray(y).tolist(), kind=kind, color=color, labels=labels)
        for color, (name, (x, y)) in enumerate(columns.items())
    ]


def short_numbers(values: Iterable[float | None], digits: int = 6) -> Numbers:
    """Return numbers for JSON: with some digits, nine of large ones, and None for what is not finite."""
    known = (value if value is not None and math.isfinite(value) else None for value in values)
    short = [None if value is None else float(f"{value:.{digits if abs(value) < 1e6 else 9}g}") for value in known]
    return [int(value) if value is not None and value.is_integer() and abs(value) < 1e15 else value for value in short]


def _plain(element: Axis | Series | ReferenceLine) -> dict[str, Any]:
    """Return the fields that are not empty, with printable texts and short numbers."""
    plain: dict[str, Any] = {}
    for name, value in vars(element).items():
        if value is None or value is False:
            continue
        if isinstance(value, str):
            plain[name] = printable(value)
        elif isinstance(value, int | float):
            plain[name] = value
        elif len(value):
            plain[name] = list(map(printable, value)) if isinstance(value[0], str) else short_numbers(value)
    return plain
