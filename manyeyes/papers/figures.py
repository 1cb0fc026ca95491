"""The charts of each table and figure; the paper's numbers are shown only next to runs that are the paper's."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np

from manyeyes.papers.choices import open_choices
from manyeyes.papers.data_figures import classes_per_client, label_counts, skews
from manyeyes.papers.exhibit import ExhibitRow
from manyeyes.papers.metric import AfterRounds, ClassMetric, Metric, RoundsTo, relative_after
from manyeyes.papers.results import BestRun, ExhibitResults
from manyeyes.papers.timing import describe
from manyeyes.report.chart import Axis, Chart, Kind, ReferenceLine, Series

LABELS = {
    "accuracy": "accuracy",
    "macro_ap_200": "per-class AP",
    "macro_ap": "exact per-class AP",
    "user_mean": "mean accuracy of the clients",
}
Points = list[tuple[float, list[float]]]  # x, and the values of the seeds
Property = Callable[[ExhibitRow, BestRun], float | None]
NameOf = Callable[[str], str]  # from the name of a row to the name of its chart or line


def figures(results: ExhibitResults) -> list[Chart]:
    """Return the charts of an exhibit in which something was measured; they say if the runs are not the paper's."""
    exhibit = results.exhibit
    measured_rows = tuple(row for row in exhibit.rows if not row.same_as)
    charts, titles = list[Chart](), set[str]()
    for chart in _draw(replace(results, exhibit=replace(exhibit, rows=measured_rows))):
        if any(y is not None for series in chart.series if "paper" not in series.name for y in series.y):
            title = ", ".join(filter(None, [exhibit.key, chart.title]))
            title += f", {chart.y.label}" if title in titles else ""
            titles.add(title)
            caption = " ".join(filter(None, [exhibit.claim, results.disclaimer, chart.caption]))
            chart = replace(chart, name=f"chart-{len(charts) + 1}", title=title, caption=caption)
            charts.append(chart.with_caveat(results.tag))
    return charts


def _draw(results: ExhibitResults) -> Iterator[Chart]:
    """Yield the charts that the paper's file describes; their captions are notes, and they have no names."""
    for chart in results.exhibit.charts:
        arguments = {name: value for name, value in chart.items() if name != "kind"}
        for name in arguments.keys() & {"group", "line"}:
            group = arguments[name]
            arguments[name] = GROUPS[group] if isinstance(group, str) else _items(*group)
        yield from CHARTS[chart["kind"]](results, **arguments)


def curves(
    results: ExhibitResults, metric: str, group: NameOf = lambda name: "", relative: bool = False
) -> Iterator[Chart]:
    """Yield a metric over rounds: a line for each row, and a chart for each group of rows."""
    x, y = Axis("rounds"), Axis(f"relative {metric}" if relative else LABELS[metric], percent=True)
    curve_metric = AfterRounds(metric, relative=relative)
    for title, rows in _groups(filter(_is_curve, results.exhibit.rows), group).items():
        series = []
        for color, row in enumerate(rows):
            series.append(_curve(row.name, results.best_runs(row, curve_metric), curve_metric, color))
            if not results.tag:
                series.append(_printed_points(row, curve_metric, color))
        baseline = results.centralized_baseline(rows[0], 0)
        note = _baselines(results, rows) if relative else ""
        yield _chart(title, x, y, series, 1.0 if relative and baseline is not None else baseline, note)


def _curve(name: str, best_runs: list[BestRun], metric: AfterRounds, color: int) -> Series:
    """Return the mean over seeds, at the rounds that all of them have evaluated."""
    values = []
    for best in best_runs:
        curve = best.outcome.curve(metric.metric)
        divisor = (metric.relative and best.outcome.centralized_baseline) or 1.0
        values.append(dict(zip(curve.rounds_E.tolist(), (curve.values_E / divisor).tolist(), strict=True)))
    rounds = sorted(set.intersection(*map(set, values))) if values else []
    return _mean_series(name, rounds, [[value[round] for value in values] for round in rounds], color)


def _printed_points(row: ExhibitRow, curve_metric: AfterRounds, color: int) -> Series:
    """Return the points that the paper says a curve goes through."""
    points = []
    for metric, printed in row.expected.items():
        if printed is None or printed.is_lower_bound:
            continue
        if isinstance(metric, RoundsTo):
            points.append((printed.value, metric.fraction))
        elif isinstance(metric, AfterRounds) and metric.metric == curve_metric.metric and not curve_metric.relative:
            points.append((metric.rounds or row.runs[0].count("rounds"), printed.as_fraction))
    x, y = [x for x, _ in points], [y for _, y in points]
    return Series(f"{row.name} (paper)", x, y, kind="points", dashed=True, color=color)


def bars(
    results: ExhibitResults, name: str, rounds: int | None = None, label: str = "", group: NameOf = lambda name: ""
) -> Iterator[Chart]:
    """Yield a metric of each row, in a chart for each group of rows."""
    metric = AfterRounds(name, rounds)
    y = Axis(label or str(results.options.scale_metric(metric)), percent=True)
    for title, rows in _groups((row for row in results.exhibit.rows if metric in row.expected), group).items():
        x, indices = Axis(names=tuple(row.name for row in rows)), list(range(len(rows)))
        values = [[best.value for best in results.best_runs(row, metric)] for row in rows]
        series = [_mean_series("measured", indices, values, 0, "bars")]
        if not results.tag:
            printed = [_fraction(row, metric) for row in rows]
            series.append(Series("paper", indices, printed, kind="points", dashed=True, color=1))
        yield _chart(title, x, y, series, results.centralized_baseline(rows[0], 0), _gap_note(results, rows, metric))


def relative_against(
    results: ExhibitResults, property: str, group: NameOf, line: NameOf, rounds: int | None = None
) -> Iterator[Chart]:
    """Yield the relative accuracy against a property of each row: a line for each family of rows."""
    metric, (x, x_of) = relative_after(rounds), PROPERTIES[property]
    for title, rows in _groups((row for row in results.exhibit.rows if metric in row.expected), group).items():
        series = []
        for color, (name, members) in enumerate(_groups(rows, line).items()):
            points = _points(results, members, metric, x_of)
            series.append(_mean_series(name, [x for x, _ in points], [values for _, values in points], color))
        y = Axis("relative accuracy", percent=True)
        yield _chart(title, x, y, series, 1.0, _notes(_gap_note(results, rows, metric), _baselines(results, rows)))


def _points(results: ExhibitResults, rows: list[ExhibitRow], metric: Metric, x_of: Property) -> Points:
    """Return the property of each row that has it, and the values of the row's seeds."""
    runs = [(row, best) for row in rows if (best := results.best_runs(row, metric))]
    positions = [(x_of(row, best[0]), [run.value for run in best]) for row, best in runs]
    return sorted((x, values) for x, values in positions if x is not None)


def class_scores(results: ExhibitResults, exact: bool = False) -> Iterator[Chart]:
    """Yield FLAIR's figure 4: AP against how common a class is, from scratch and fine-tuned."""
    x, y = Axis("test images with the class", log=True), Axis("exact AP" if exact else "AP", percent=True)
    for title, rows in _groups(results.exhibit.rows, _initialization).items():
        yield _chart(title, x, y, [s for color, row in enumerate(rows) for s in _classes(results, row, color, exact)])


def _classes(results: ExhibitResults, row: ExhibitRow, color: int, exact: bool) -> Iterator[Series]:
    """Yield the measured and printed AP of each class, of the first seed."""
    if not (best_runs := results.best_runs(row, AfterRounds("macro_ap"))):
        return
    outcome = best_runs[0].outcome
    scores, counts = outcome.exact_class_ap if exact else outcome.class_scores, outcome.class_counts
    labels = [label for label, count in counts.items() if count]
    x, y = [counts[label] for label in labels], [scores[label] for label in labels]
    measured = Series(row.name, x, y, kind="points", color=color, labels=labels)
    yield measured
    if not results.tag and not exact:
        printed = [_fraction(row, ClassMetric(label)) for label in labels]
        yield replace(measured, name=f"{row.name} (paper)", y=printed, dashed=True)


def user_scores(results: ExhibitResults) -> Iterator[Chart]:
    """Yield FLAIR's figure 5, its violins as the fraction of users below each AP, of the first seed."""
    series = []
    for color, row in enumerate(results.exhibit.rows):
        for best in results.best_runs(row, AfterRounds("macro_ap"))[:1]:
            scores_U = np.sort(best.outcome.user_scores)
            fraction_U = (np.arange(len(scores_U)) + 1) / len(scores_U)
            is_dashed = _initialization(row.name) == "from scratch"
            series.append(Series(row.name, scores_U.tolist(), fraction_U.tolist(), dashed=is_dashed, color=color))
    yield _chart("", Axis("AP of a user"), Axis("users with at most that AP", percent=True), series)


def _chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], centralized: float | None = None, note: str = ""
) -> Chart:
    lines = [] if centralized is None else [ReferenceLine("centralized", y=centralized)]
    return Chart("", title, x, y, series, note, lines)


def _fraction(row: ExhibitRow, metric: Metric) -> float | None:
    return None if (printed := row.expected.get(metric)) is None else printed.as_fraction


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


def _baselines(results: ExhibitResults, rows: Iterable[ExhibitRow]) -> str:
    """Return what the relative accuracies of rows refer to, and how it was trained if the paper leaves that open."""
    notes = dict.fromkeys(results.baseline_note(row) for row in rows)
    runs = [row.centralized_baseline for row in rows if row.centralized_baseline is not None]
    answers = results.options.answers
    return _notes(*notes, *(choice.describe(answers[choice.name]) for choice in open_choices(runs)))


def _notes(*notes: str) -> str:
    return " ".join(filter(None, notes))


def _mean_series(
    name: str, x: list[float] | list[int], values: list[list[float]], color: int, kind: Kind = "line"
) -> Series:
    """Return means over seeds, with a band of one standard deviation if there are several."""
    means = [fmean(seeds) if seeds and math.isfinite(fmean(seeds)) else None for seeds in values]
    deviations = [stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
    spread = list(zip(means, deviations, strict=True)) if any(deviations) else []
    low, high = ([None if mean is None else mean + sign * std for mean, std in spread] for sign in (-1, 1))
    return Series(name, x, means, low, high, kind, color=color)


def _initialization(name: str) -> str:
    """Return how a FLAIR row such as "FL-R" or "PFL-F, cohort of 200" starts."""
    return {"R": "from scratch", "F": "fine-tuned"}[name.partition(", ")[0][-1]]


def _items(*indices: int) -> NameOf:
    """Return a function that takes items of a row's name, which commas separate."""
    return lambda name: ", ".join(item for index, item in enumerate(name.split(", ")) if index in indices)


GROUPS: dict[str, NameOf] = {  # by their names in the papers' files
    "initialization": _initialization,
    "number of classes": lambda name: name.rpartition("-")[2] + " classes",
    "dataset": lambda name: (
        f"Landmarks, {name.split(', ')[-1]}" if name.endswith("layers") else "iNaturalist-User-120k"
    ),
    "partitions": lambda name: "partitions",
}
PROPERTIES: dict[str, tuple[Axis, Property]] = {
    "emd": (Axis("mean EMD of the clients"), lambda row, best: best.outcome.mean_emd),
    "learning rate": (
        Axis("effective learning rate", log=True),
        lambda row, best: float(10 ** float(row.name.rpartition("^")[2])),
    ),
}
CHARTS: dict[str, Callable[..., Iterable[Chart]]] = {
    function.__name__: function
    for function in (bars, classes_per_client, class_scores, curves, label_counts, relative_against, skews, user_scores)
}
