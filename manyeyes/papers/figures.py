"""What each table and figure looks like: measured curves, points and bars, and the paper's numbers where it has them.

The paper's numbers stand beside runs of the paper's own size alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from manyeyes.core.population import Population
from manyeyes.papers.comparison import ExhibitResults
from manyeyes.papers.data_figures import chart, classes_of_clients, label_counts, pixels, quantity
from manyeyes.papers.exhibit import DatasetRecipe, ExhibitRow
from manyeyes.papers.metric import AfterRounds, ClassMetric, Final, Metric, Relative, RoundsTo, RunOutcome
from manyeyes.papers.timing import describe
from manyeyes.report.chart import Axis, Chart, Kind, Mark, Series

SCORES = {"accuracy": "accuracy", "macro_ap": "per-class AP", "user_mean": "mean accuracy of the clients"}
Populations = Mapping[DatasetRecipe, Population]
Draw = Callable[[ExhibitResults, Populations], list[Chart]]


def figures(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """The charts of an item that have something to show."""
    charts = FIGURES[found.item.key](found, populations) if found.item.key in FIGURES else []
    seen = [one for one in charts if any(y is not None for s in one.series if "paper" not in s.name for y in s.y)]
    return [replace(one, name=f"chart-{number}") for number, one in enumerate(seen, 1)]


@dataclass(frozen=True)
class Curves:
    """A metric over rounds, a line for each row, in a chart for each group of rows."""

    metric: str
    group: Callable[[str], str] = lambda name: ""
    relative: bool = False  # to the centralised run's

    def __call__(self, found: ExhibitResults, populations: Populations) -> list[Chart]:
        charts = []
        rows = [row for row in found.item.rows if row.runs and row.runs[0].setting("algorithm") != "centralized"]
        for title, some in _groups(rows, self.group).items():
            series = [one for place, row in enumerate(some) for one in self._of(found, row, place)]
            y = Axis(f"relative {self.metric}" if self.relative else SCORES[self.metric], percent=True)
            bounds = [b for row in some[:1] if (b := found.centralized_baseline(row, 0)) is not None]
            level = [Mark("centralized", y=1.0 if self.relative else bounds[0])] if bounds else []
            charts.append(chart(found, title, Axis("rounds"), y, series, level))
        return charts

    def _of(self, found: ExhibitResults, row: ExhibitRow, place: int) -> list[Series]:
        measure = Relative() if self.relative else Final(self.metric)
        found_curves = [_points(outcome, self.metric, self.relative) for outcome in found.outcomes(row, measure)]
        shared = sorted(set.intersection(*(set(curve) for curve in found_curves))) if found_curves else []
        values = [[curve[round] for curve in found_curves] for round in shared]
        lines = [_series(row.name, shared, values, place)]
        if not found.options.tag:
            lines.append(self._printed(found, row, place))
        return lines

    def _printed(self, found: ExhibitResults, row: ExhibitRow, place: int) -> Series:
        """Where the paper says that the curve goes through."""
        points = []
        for measure, number in row.expected.items():
            if number is None or number.beyond:
                continue
            if isinstance(measure, RoundsTo):
                points.append((number.value, measure.fraction))
            elif isinstance(measure, AfterRounds | Final) and measure.metric == self.metric and not self.relative:
                rounds = measure.rounds if isinstance(measure, AfterRounds) else int(row.runs[0].setting("rounds") or 0)
                points.append((rounds, number.plain))
        x, y = zip(*points, strict=True) if points else ((), ())
        return Series(f"{row.name} (paper)", x, y, kind="points", dashed=True, color=place)


@dataclass(frozen=True)
class Bars:
    """A measure of each row, and the paper's number for it."""

    measure: Metric
    y: str = ""  # what is measured, where its own words are not enough
    group: Callable[[str], str] = lambda name: ""

    def __call__(self, found: ExhibitResults, populations: Populations) -> list[Chart]:
        charts = []
        rows = [row for row in found.item.rows if self.measure in row.expected]
        for title, some in _groups(rows, self.group).items():
            values = [list(found.values(row, self.measure)) for row in some]
            places = list(range(len(some)))
            series = [_series("measured", places, values, 0, "bars")]
            if not found.options.tag:
                printed = [number.plain if (number := row.expected[self.measure]) else None for row in some]
                series.append(Series("paper", places, printed, kind="points", dashed=True, color=1))
            bound = found.centralized_baseline(some[0], 0)
            level = [] if bound is None else [Mark("centralized", y=bound)]
            x = Axis("", names=tuple(row.name for row in some))
            y = Axis(self.y or str(found.options.measure(self.measure)), percent=True)
            charts.append(chart(found, title, x, y, series, level, _evaluated(found, some, self.measure)))
        return charts


@dataclass(frozen=True)
class Against:
    """Relative accuracy against something that differs from row to row, a line for each family of rows."""

    measure: Relative
    x: str
    family: Callable[[str], tuple[str, str]]  # of a row's name: its chart and its line
    at: Callable[[ExhibitResults, ExhibitRow], float]
    log: bool = False

    def __call__(self, found: ExhibitResults, populations: Populations) -> list[Chart]:
        charts = []
        rows = [row for row in found.item.rows if self.measure in row.expected]
        for title, some in _groups(rows, lambda name: self.family(name)[0]).items():
            series = []
            for place, (name, line) in enumerate(_groups(some, lambda name: self.family(name)[1]).items()):
                points = [(self.at(found, row), list(found.values(row, self.measure))) for row in line]
                known = sorted((x, values) for x, values in points if values and math.isfinite(x))
                series.append(_series(name, [x for x, _ in known], [v for _, v in known], place))
            level = [Mark("centralized", y=1.0)]
            y = Axis("relative accuracy", percent=True)
            late = _evaluated(found, some, self.measure)
            charts.append(chart(found, title, Axis(self.x, log=self.log), y, series, level, late))
        return charts


def per_class(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """FLAIR's figure 4: AP against how common a class is, from scratch and fine-tuned."""
    charts = []
    for kind, some in _groups(found.item.rows, lambda name: name.rpartition("-")[2]).items():
        series = []
        for place, row in enumerate(some):
            for outcome in found.outcomes(row, Final("macro_ap"))[:1]:
                labels = [label for label, count in outcome.class_counts.items() if count]
                counts = [outcome.class_counts[label] for label in labels]
                ap = [outcome.class_scores[label] for label in labels]
                series.append(Series(row.name, counts, ap, kind="points", color=place, labels=labels))
                if not found.options.tag:
                    numbers = [row.expected.get(ClassMetric(label)) for label in labels]
                    printed = [number.plain if number else None for number in numbers]
                    name = f"{row.name} (paper)"
                    series.append(Series(name, counts, printed, (), (), "points", True, place, labels))
        title = {"R": "from scratch", "F": "fine-tuned"}[kind]
        x = Axis("test images with the class", log=True)
        charts.append(chart(found, title, x, Axis("AP", percent=True), series))
    return charts


def per_user(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """FLAIR's figure 5, its violins as the share of users below each AP."""
    series = []
    for place, row in enumerate(found.item.rows):
        for outcome in found.outcomes(row, Final("macro_ap"))[:1]:
            scores = sorted(outcome.user_scores)
            step = max(1, len(scores) // 500)
            share = [(rank + 1) / len(scores) for rank in range(len(scores))]
            series.append(Series(row.name, scores[::step], share[::step], color=place, dashed=row.name[-1] == "R"))
    x, y = Axis("AP of a user"), Axis("users with at most that AP", percent=True)
    return [chart(found, "", x, y, series)]


def _groups(rows: Iterable[ExhibitRow], group: Callable[[str], str]) -> dict[str, list[ExhibitRow]]:
    found: dict[str, list[ExhibitRow]] = {}
    for row in rows:
        found.setdefault(group(row.name), []).append(row)
    return found


def _evaluated(found: ExhibitResults, rows: Iterable[ExhibitRow], measure: Metric) -> str:
    """What is said of rows that were not evaluated when they should have been."""
    late = describe(one for row in rows for one in found.lags(row, measure))
    return f"Some were {late}." if late else ""


def _points(outcome: RunOutcome, metric: str, relative: bool) -> dict[int, float]:
    curve = outcome.curve(metric)
    over = outcome.centralized_baseline if relative and outcome.centralized_baseline else 1.0
    return dict(zip(curve.rounds_E.tolist(), (curve.values_E / over).tolist(), strict=True))


def _series(
    name: str, x: list[float] | list[int], values: list[list[float]], place: int, kind: Kind = "line"
) -> Series:
    """Means over seeds, and a deviation to either side where there are several."""
    means = [fmean(some) if some and math.isfinite(fmean(some)) else None for some in values]
    spread: list[float] = [stdev(some) if len(some) > 1 else 0.0 for some in values]
    low, high = ([None if m is None else m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
    return Series(name, x, means, low if any(spread) else (), high if any(spread) else (), kind, color=place)


def _without_relative(found: ExhibitResults) -> ExhibitResults:
    """The rows that are curves."""
    rows = tuple(row for row in found.item.rows if not any(isinstance(measure, Relative) for measure in row.expected))
    return replace(found, item=replace(found.item, rows=rows))


def _emd(found: ExhibitResults, row: ExhibitRow) -> float:
    """The mean EMD of the clients that the row's runs train on."""
    return next((emd for run in row.runs if (emd := found.emd(run)) is not None), math.nan)


def _rate(found: ExhibitResults, row: ExhibitRow) -> float:
    return 10 ** float(row.name.rpartition("^")[2])


def _part(name: str, *places: int) -> str:
    parts = name.split(", ")
    return ", ".join(parts[place] for place in places if place < len(parts))


FIGURES: dict[str, Draw] = {
    "flair.table1": Bars(Final("macro_ap"), "per-class AP (C-AP)", lambda name: name.rpartition("-")[2] + " classes"),
    "flair.figure2": lambda found, people: [quantity(found, people), *pixels(found, people)],
    "flair.figure3": label_counts,
    "flair.figure4": per_class,
    "flair.figure5": per_user,
    "flair.figure6": Curves("macro_ap", lambda name: {"R": "from scratch", "F": "fine-tuned"}[_part(name, 0)[-1]]),
    "hsu2020.table1": Bars(Final("accuracy"), "centralised accuracy"),
    "hsu2020.table2": Curves("accuracy", lambda name: _part(name, 0)),
    "hsu2020.table3": Curves("accuracy"),
    "hsu2020.table4": Curves("accuracy", lambda name: _part(name, 2)),
    "hsu2020.table5": Curves("accuracy", lambda name: _part(name, 1), relative=True),
    "hsu2020.figure2": classes_of_clients,
    "hsu2020.figure3": classes_of_clients,
    "hsu2020.figure4": Against(
        Relative(), "mean EMD of the clients", lambda name: (_part(name, 0), _part(name, 1, 2)), _emd
    ),
    "hsu2020.figure5": Bars(
        AfterRounds("accuracy", 2500),
        group=lambda name: f"Landmarks, {name.split(', ')[-1]}" if name.endswith("layers") else "iNaturalist-User-120k",
    ),
    "hsu2020.figure6": lambda found, people: [
        *Curves("accuracy", lambda name: _part(name, 0))(_without_relative(found), people),
        *Against(Relative(2500), "mean EMD of the clients", lambda name: ("partitions", _part(name, 1)), _emd)(
            found, people
        ),
    ],
    "hsu2020.figure7": Curves("accuracy", lambda name: _part(name, 1)),
    "hsu2020.figure8": Against(
        Relative(), "effective learning rate", lambda name: (_part(name, 0, 1, 2), _part(name, 3)), _rate, log=True
    ),
    "hsu2020.figure9": Curves("accuracy", lambda name: _part(name, 1), relative=True),
    "hsu2020.figure10": classes_of_clients,
    "fedper.figure2": Curves("user_mean", lambda name: _part(name, 0)),
    "fedper.figure4": Curves("user_mean", lambda name: _part(name, 0)),
    "fedper.figure7": Curves("user_mean"),
    "fedper.figure8": Curves("user_mean"),
}
