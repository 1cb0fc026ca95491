"""What a sweep found: the score over one setting, a heat map over two, parallel coordinates over more."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from manyeyes.report.chart import Axis, Chart, Series
from manyeyes.report.curves import Group, column, is_fraction, metric_chart, metric_label, metrics
from manyeyes.report.findings import sort_key, swept_settings
from manyeyes.report.overview import is_ranked
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.scale import Scale
from manyeyes.report.text import escape, format_mean, shorten, text_width
from manyeyes.training.run_record import RunRecord, format_setting

MIN_GROUPS = 3  # of a sweep that has a section
MAX_SWEPT = 6  # settings of a sweep; runs that differ in more are no sweep
MAX_MULTIPLES = 8  # values of a setting, each with a small chart of its own
LOG_RATIO = 20  # of the largest to the smallest value, from which an axis is logarithmic
WIDTH, HEIGHT, TOP, BOTTOM, MARGIN = 960, 340, 40, 16, 96  # pixels of parallel coordinates
MAX_TICK_NAMES = 12


def sweep_section(groups: list[Group]) -> Section | None:
    """Return the scores over the settings that were swept, without the seed; None if there is nothing to compare."""
    runs = [run for group in groups for run in group.runs]
    swept, scored = swept_settings(runs), [group for group in groups if group.scores]
    if len(scored) < MIN_GROUPS or not 0 < len(swept) <= MAX_SWEPT or not is_ranked(groups):
        return None
    metric = metrics(runs)[0]
    label = metric_label(runs, metric)
    if len(swept) == 1:
        chart = _score_chart(scored, swept[0], metric, label)
        return Section("Sweep", [ChartGrid([chart])]) if chart else None
    overview = HeatMap(scored, swept, label) if len(swept) == 2 else ParallelCoordinates(scored, swept, label)
    return Section("Sweep", [overview, *_small_multiples(groups, swept, metric, label)])


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A table of scores over two settings, whose cells are shaded by their score."""

    groups: list[Group]
    settings: Sequence[str]
    label: str

    def html(self) -> str:
        row_name, column_name = self.settings
        rows, columns = (_values(self.groups, name) for name in self.settings)
        cells = {tuple(_value(group.runs[0], name) for name in self.settings): group for group in self.groups}
        means = [fmean(group.scores) for group in self.groups]
        low, high = min(means), max(means)
        header = "".join(f'<th scope="col">{escape(_brief(column_name))} {escape(value)}</th>' for value in columns)
        body = "".join(
            f'<tr><th scope="row">{escape(_brief(row_name))} {escape(row)}</th>'
            + "".join(_heat_cell(cells.get((row, column)), low, high) for column in columns)
            + "</tr>"
            for row in rows
        )
        caption = escape(
            f"{self.label[0].upper()}{self.label[1:]} at the end, over two settings; the stronger the color, the higher"
        )
        return (
            f'<div class="wide" role="region" tabindex="0" aria-label="{caption}"><table class="heat">'
            f"<caption><span>{caption}</span></caption><thead><tr><td></td>{header}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _heat_cell(group: Group | None, low: float, high: float) -> str:
    if group is None:
        return "<td></td>"
    mean = fmean(group.scores)
    percent = round(50 * (mean - low) / ((high - low) or 1))  # so that text stays readable in both themes
    text = escape(format_mean(group.scores, is_fraction(group.runs, group.runs[0].metric or "")))
    content = f"<b>{text}</b>" if mean == high else text
    return f'<td style="background:color-mix(in srgb,var(--color-0) {percent}%,var(--paper))">{content}</td>'


@dataclass(frozen=True, eq=False)
class ParallelCoordinates:
    """A line for each choice of settings, through its values and its score; the best are drawn last and strongest."""

    groups: list[Group]
    settings: Sequence[str]
    label: str

    def html(self) -> str:
        order = sorted(self.groups, key=lambda group: fmean(group.scores))
        step = (WIDTH - 2 * MARGIN) / len(self.settings)
        parts = [self._line(group, rank / max(1, len(order) - 1), step) for rank, group in enumerate(order)]
        parts += [self._axis(name, MARGIN + i * step) for i, name in enumerate(self.settings)] + [self._score_axis()]
        caption = escape(f"{self.label[0].upper()}{self.label[1:]} at the end, over {len(self.settings)} settings")
        return (
            f'<figure class="chart parallel"><div class="me-title">{caption}</div><div class="wide" role="region" '
            f'tabindex="0" aria-label="{caption}"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{caption}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="var(--soft)">{"".join(parts)}</svg></div>'
            "<figcaption>Each line is one choice of settings, from its values on the left to its score on the right; the "
            "better, the stronger its color. Point at a line to read it.</figcaption></figure>"
        )

    def _line(self, group: Group, strength: float, step: float) -> str:
        points = [(MARGIN + i * step, self._y(name, group)) for i, name in enumerate(self.settings)]
        points.append((WIDTH - MARGIN, self._score_scale(fmean(group.scores))))
        path = f"M{points[0][0]:.0f},{points[0][1]:.1f}"
        for (x, y), (next_x, next_y) in pairwise(points):
            middle = (x + next_x) / 2
            path += f"C{middle:.0f},{y:.1f} {middle:.0f},{next_y:.1f} {next_x:.0f},{next_y:.1f}"
        color = f"color-mix(in srgb,var(--color-0) {20 + 80 * strength:.0f}%,var(--grid))"
        title = f"{group.name}: {format_mean(group.scores, self._is_fraction)}"
        return (
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{1.5 + 2 * strength**4:.1f}">'
            f"<title>{escape(title)}</title></path>"
        )

    def _axis(self, name: str, x: float) -> str:
        values = _values(self.groups, name)
        step = -(-len(values) // MAX_TICK_NAMES)
        labels = "".join(
            _label(x - 6, _position(i, len(values)) - 8, value, "end")
            for i, value in enumerate(values)
            if i % step == 0
        )
        return _axis_line(x) + _label(x, 16, _brief(name), "middle", "var(--ink)") + labels

    def _score_axis(self) -> str:
        x, scale = WIDTH - MARGIN, self._score_scale
        labels = "".join(_label(x + 8, y + 4, text, "start") for y, text in scale.ticks(5))
        return _axis_line(x) + _label(x, 16, self.label, "middle", "var(--ink)") + labels

    def _y(self, name: str, group: Group) -> float:
        values = _values(self.groups, name)
        return _position(values.index(_value(group.runs[0], name)), len(values))

    @property
    def _score_scale(self) -> Scale:
        means = [fmean(group.scores) for group in self.groups]
        low, high = min(means), max(means)
        return Scale(Axis(percent=self._is_fraction), low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP)

    @property
    def _is_fraction(self) -> bool:
        return is_fraction(self.groups[0].runs, self.groups[0].runs[0].metric or "")


def _label(x: float, y: float, text: str, anchor: str, color: str = "var(--soft)") -> str:
    room = WIDTH / 5
    label = shorten(text, room)
    x = min(x, WIDTH - text_width(label) / 2) if anchor == "middle" else x
    halo = 'stroke="var(--paper)" stroke-width="4" paint-order="stroke"'
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}" {halo}>{escape(label)}</text>'


def _axis_line(x: float) -> str:
    return f'<path d="M{x:.0f},{TOP}V{HEIGHT - BOTTOM}" stroke="var(--axis)"/>'


def _position(index: int, count: int) -> float:
    """Return the height of a value of a setting, the first at the bottom."""
    return HEIGHT - BOTTOM - (index + 0.5) * (HEIGHT - BOTTOM - TOP) / count


def _score_chart(groups: list[Group], setting: str, metric: str, label: str) -> Chart | None:
    """Return the score over the values of a numeric setting, with whiskers over seeds; None if it has names."""
    points = sorted((sort_key(_value(group.runs[0], setting))[0], group.scores) for group in groups)
    x = [value for value, _ in points]
    if x[-1] == float("inf") or len(set(x)) < len(x):
        return None
    y = [fmean(scores) for _, scores in points]
    spreads = [stdev(scores) if len(scores) > 1 else 0.0 for _, scores in points]
    bands = ([m - s for m, s in zip(y, spreads, strict=True)], [m + s for m, s in zip(y, spreads, strict=True)])
    low, high = bands if any(spreads) else ([], [])
    x_axis = Axis(_brief(setting), log=x[0] > 0 and x[-1] >= LOG_RATIO * x[0], ticks=tuple(x))
    title = f"{label[0].upper()}{label[1:]} at the end, over {_brief(setting)}"
    return Chart(
        "sweep", title, x_axis, Axis(label, percent=is_fraction(groups[0].runs, metric)), [Series("", x, y, low, high)]
    )


def _small_multiples(groups: list[Group], swept: Sequence[str], metric: str, label: str) -> list[ChartGrid]:
    """Return the curves for each value of the setting with the fewest values, on the same axes."""
    counts = {name: len(_values(groups, name)) for name in swept}
    setting = min(swept, key=lambda name: counts[name])
    if counts[setting] > MAX_MULTIPLES:
        return []
    runs = [run for group in groups for run in group.runs]
    values = [value for run in runs if (points := column(run, metric)) is not None for value in points[1].tolist()]
    margin = 0.05 * (max(values) - min(values))
    axis: dict[str, Any] = {"low": max(0.0, min(values) - margin), "high": max(values) + margin}
    charts = []
    for number, value in enumerate(_values(groups, setting)):
        subset = [group for group in groups if _value(group.runs[0], setting) == value]
        title = f"{_brief(setting)} {value}"
        charts.append(metric_chart(subset, metric, title, "", f"sweep_{number}", height=200, **axis))
    return [ChartGrid(charts)]


def _values(groups: list[Group], setting: str) -> list[str]:
    return sorted({_value(group.runs[0], setting) for group in groups}, key=sort_key)


def _value(run: RunRecord, setting: str) -> str:
    return format_setting(run.settings.get(setting)) or "none"


def _brief(setting: str) -> str:
    return setting.removesuffix(".name").rpartition(".")[2]
