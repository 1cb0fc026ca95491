"""The charts of each table and figure; the paper's numbers are drawn only next to runs that are the paper's."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from manyeyes.papers import data_figures as data
from manyeyes.papers.data_figures import make_chart
from manyeyes.papers.exhibit import ExhibitRow
from manyeyes.papers.metric import AfterRounds, ClassMetric, Metric, RoundsTo, RunOutcome, relative_after
from manyeyes.papers.results import BestRun, ExhibitResults
from manyeyes.papers.timing import describe
from manyeyes.report.chart import Axis, Chart, Kind, Series

LABELS = {"accuracy": "accuracy", "macro_ap": "per-class AP", "user_mean": "mean accuracy of the clients"}
Draw = Callable[[ExhibitResults], list[Chart]]
NameOf = Callable[[str], str]  # from the name of a row to the name of its chart or line


def figures(results: ExhibitResults) -> list[Chart]:
    """Return the charts of an exhibit in which something was measured."""
    draw = FIGURES.get(results.exhibit.key)
    charts = filter(_has_measurement, draw(results) if draw else [])
    return [replace(chart, name=f"chart-{number}") for number, chart in enumerate(charts, 1)]


@dataclass(frozen=True)
class Curves:
    """A metric over rounds: a line for each row, and a chart for each group of rows."""

    metric: str
    group: NameOf = lambda name: ""
    relative: bool = False  # to the centralized run's

    def __call__(self, results: ExhibitResults) -> list[Chart]:
        charts = []
        rows = [row for row in results.exhibit.rows if _is_curve(row)]
        x, y = Axis("rounds"), Axis(f"relative {self.metric}" if self.relative else LABELS[self.metric], percent=True)
        for title, group in _groups(rows, self.group).items():
            baseline = results.centralized_baseline(group[0], 0)
            level = 1.0 if self.relative and baseline is not None else baseline
            charts.append(make_chart(results, title, x, y, list(self._series(results, group)), level))
        return charts

    def _series(self, results: ExhibitResults, rows: list[ExhibitRow]) -> Iterator[Series]:
        for color, row in enumerate(rows):
            yield self._line(results, row, color)
            if not results.options.tag:
                yield self._printed(row, color)

    def _line(self, results: ExhibitResults, row: ExhibitRow, color: int) -> Series:
        """Return the mean over seeds, at the rounds that all of them have evaluated."""
        best_runs = results.best_runs(row, AfterRounds(self.metric, relative=self.relative))
        curves = [self._points(best.outcome) for best in best_runs]
        rounds = sorted(set.intersection(*map(set, curves))) if curves else []
        return _mean_series(row.name, rounds, [[curve[round] for curve in curves] for round in rounds], color)

    def _points(self, outcome: RunOutcome) -> dict[int, float]:
        curve = outcome.curve(self.metric)
        divisor = (self.relative and outcome.centralized_baseline) or 1.0
        return dict(zip(curve.rounds_E.tolist(), (curve.values_E / divisor).tolist(), strict=True))

    def _printed(self, row: ExhibitRow, color: int) -> Series:
        """Return the points that the paper says the curve goes through."""
        points = []
        for metric, printed in row.expected.items():
            if printed is None or printed.is_lower_bound:
                continue
            if isinstance(metric, RoundsTo):
                points.append((printed.value, metric.fraction))
            elif isinstance(metric, AfterRounds) and metric.metric == self.metric and not self.relative:
                points.append((metric.rounds or row.runs[0].count("rounds"), printed.as_fraction))
        x, y = [x for x, _ in points], [y for _, y in points]
        return Series(f"{row.name} (paper)", x, y, kind="points", dashed=True, color=color)


@dataclass(frozen=True)
class Bars:
    """A metric of each row, in a chart for each group of rows."""

    metric: Metric
    label: str = ""  # of the y axis; empty: the metric
    group: NameOf = lambda name: ""

    def __call__(self, results: ExhibitResults) -> list[Chart]:
        charts = []
        rows = [row for row in results.exhibit.rows if self.metric in row.expected]
        y = Axis(self.label or str(results.options.scale_metric(self.metric)), percent=True)
        for title, group in _groups(rows, self.group).items():
            x = Axis(names=tuple(row.name for row in group))
            values = [[best.value for best in results.best_runs(row, self.metric)] for row in group]
            series = [_mean_series("measured", list(range(len(group))), values, 0, "bars")]
            if not results.options.tag:
                series.append(self._printed(group))
            level, note = results.centralized_baseline(group[0], 0), _gap_note(results, group, self.metric)
            charts.append(make_chart(results, title, x, y, series, level, note))
        return charts

    def _printed(self, rows: list[ExhibitRow]) -> Series:
        printed = [number.as_fraction if (number := row.expected[self.metric]) else None for row in rows]
        return Series("paper", list(range(len(rows))), printed, kind="points", dashed=True, color=1)


@dataclass(frozen=True)
class RelativeAgainst:
    """The relative accuracy against a property of each row: a line for each family of rows."""

    metric: AfterRounds
    label: str  # of the x axis
    group: NameOf  # chart of a row
    line: NameOf  # line of a row
    x: Callable[[ExhibitRow, list[BestRun]], float | None]
    log: bool = False

    def __call__(self, results: ExhibitResults) -> list[Chart]:
        charts = []
        rows = [row for row in results.exhibit.rows if self.metric in row.expected]
        x, y = Axis(self.label, log=self.log), Axis("relative accuracy", percent=True)
        for title, group in _groups(rows, self.group).items():
            lines = _groups(group, self.line).items()
            series = [self._line(results, name, members, color) for color, (name, members) in enumerate(lines)]
            note = _gap_note(results, group, self.metric)
            charts.append(make_chart(results, title, x, y, series, 1.0, note))
        return charts

    def _line(self, results: ExhibitResults, name: str, rows: list[ExhibitRow], color: int) -> Series:
        best_runs = ((row, results.best_runs(row, self.metric)) for row in rows)
        candidates = [(self.x(row, best), [run.value for run in best]) for row, best in best_runs if best]
        points = sorted((x, values) for x, values in candidates if x is not None)
        return _mean_series(name, [x for x, _ in points], [values for _, values in points], color)


def class_scores(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 4: AP against how common a class is, from scratch and fine-tuned."""
    x, y = Axis("test images with the class", log=True), Axis("AP", percent=True)
    groups = _groups(results.exhibit.rows, _initialization).items()
    return [
        make_chart(results, title, x, y, [s for color, row in enumerate(rows) for s in _classes(results, row, color)])
        for title, rows in groups
    ]


def _classes(results: ExhibitResults, row: ExhibitRow, color: int) -> list[Series]:
    """Return the measured and printed AP of each class, of the first seed."""
    if not (best_runs := results.best_runs(row, AfterRounds("macro_ap"))):
        return []
    outcome = best_runs[0].outcome
    labels = [label for label, count in outcome.class_counts.items() if count]
    x, y = [outcome.class_counts[label] for label in labels], [outcome.class_scores[label] for label in labels]
    measured = Series(row.name, x, y, kind="points", color=color, labels=labels)
    if results.options.tag:
        return [measured]
    expected = [row.expected.get(ClassMetric(label)) for label in labels]
    printed = [number.as_fraction if number else None for number in expected]
    return [measured, replace(measured, name=f"{row.name} (paper)", y=printed, dashed=True)]


def user_scores(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 5, its violins as the fraction of users below each AP, of the first seed."""
    series = []
    for color, row in enumerate(results.exhibit.rows):
        for best in results.best_runs(row, AfterRounds("macro_ap"))[:1]:
            scores_U = np.sort(best.outcome.user_scores)
            fraction_U = (np.arange(len(scores_U)) + 1) / len(scores_U)
            is_dashed = _initialization(row.name) == "from scratch"
            series.append(Series(row.name, scores_U.tolist(), fraction_U.tolist(), dashed=is_dashed, color=color))
    x, y = Axis("AP of a user"), Axis("users with at most that AP", percent=True)
    return [make_chart(results, "", x, y, series)]


def _has_measurement(chart: Chart) -> bool:
    return any(y is not None for series in chart.series if "paper" not in series.name for y in series.y)


def _is_curve(row: ExhibitRow) -> bool:
    """Return whether a row is a learning curve, and neither a baseline nor a point of another chart."""
    is_point = any(isinstance(metric, AfterRounds) and metric.relative for metric in row.expected)
    return bool(row.runs) and row.runs[0].setting("algorithm") != "centralized" and not is_point


def _groups(rows: Iterable[ExhibitRow], group: NameOf) -> dict[str, list[ExhibitRow]]:
    groups: dict[str, list[ExhibitRow]] = {}
    for row in rows:
        groups.setdefault(group(row.name), []).append(row)
    return groups


def _gap_note(results: ExhibitResults, rows: Iterable[ExhibitRow], metric: Metric) -> str:
    """Return a sentence if rows were not evaluated at the paper's budget."""
    gap = describe(best.gap for row in rows for best in results.best_runs(row, metric))
    return f"Some were {gap}." if gap else ""


def _mean_series(
    name: str, x: list[float] | list[int], values: list[list[float]], color: int, kind: Kind = "line"
) -> Series:
    """Return means over seeds, with a band of one standard deviation if there are several."""
    means = [fmean(seeds) if seeds and math.isfinite(fmean(seeds)) else None for seeds in values]
    deviations = [stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
    low, high = (
        [None if mean is None else mean + sign * std for mean, std in zip(means, deviations, strict=True)]
        for sign in (-1, 1)
    )
    has_band = any(deviations)
    return Series(name, x, means, low if has_band else (), high if has_band else (), kind, color=color)


def _mean_emd(row: ExhibitRow, best_runs: list[BestRun]) -> float | None:
    return best_runs[0].outcome.mean_emd


def _learning_rate(row: ExhibitRow, best_runs: list[BestRun]) -> float:
    return float(10 ** float(row.name.rpartition("^")[2]))


def _initialization(name: str) -> str:
    """Return how a FLAIR row such as "FL-R" or "PFL-F, cohort of 200" starts."""
    return {"R": "from scratch", "F": "fine-tuned"}[name.partition(", ")[0][-1]]


def _items(*indices: int) -> NameOf:
    """Return a function that takes items of a row's name, which commas separate."""
    return lambda name: ", ".join(item for index, item in enumerate(name.split(", ")) if index in indices)


EMD_LABEL = "mean EMD of the clients"
FIGURES: dict[str, Draw] = {
    "flair.table1": Bars(
        AfterRounds("macro_ap"), "per-class AP (C-AP)", lambda name: name.rpartition("-")[2] + " classes"
    ),
    "flair.figure2": lambda results: [*data.quantity_skews(results), *data.pixel_skews(results)],
    "flair.figure3": data.label_counts,
    "flair.figure4": class_scores,
    "flair.figure5": user_scores,
    "flair.figure6": Curves("macro_ap", _initialization),
    "hsu2020.table1": Bars(AfterRounds("accuracy"), "centralized accuracy"),
    "hsu2020.table2": Curves("accuracy", _items(0)),
    "hsu2020.table3": Curves("accuracy"),
    "hsu2020.table4": Curves("accuracy", _items(2)),
    "hsu2020.table5": Curves("accuracy", _items(1), relative=True),
    "hsu2020.figure2": data.classes_per_client,
    "hsu2020.figure3": data.classes_per_client,
    "hsu2020.figure4": RelativeAgainst(relative_after(), EMD_LABEL, _items(0), _items(1, 2), _mean_emd),
    "hsu2020.figure5": Bars(
        AfterRounds("accuracy", 2500),
        group=lambda name: f"Landmarks, {name.split(', ')[-1]}" if name.endswith("layers") else "iNaturalist-User-120k",
    ),
    "hsu2020.figure6": lambda results: [
        *Curves("accuracy", _items(0))(results),
        *RelativeAgainst(relative_after(2500), EMD_LABEL, lambda _: "partitions", _items(1), _mean_emd)(results),
    ],
    "hsu2020.figure7": Curves("accuracy", _items(1)),
    "hsu2020.figure8": RelativeAgainst(
        relative_after(), "effective learning rate", _items(0, 1, 2), _items(3), _learning_rate, log=True
    ),
    "hsu2020.figure9": Curves("accuracy", _items(1), relative=True),
    "hsu2020.figure10": data.classes_per_client,
    "fedper.figure2": Curves("user_mean", _items(0)),
    "fedper.figure4": Curves("user_mean", _items(0)),
    "fedper.figure7": Curves("user_mean"),
    "fedper.figure8": Curves("user_mean"),
}
