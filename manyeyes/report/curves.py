"""Curves of runs over rounds, batches, images or seconds; runs that differ only by seed are a mean with a band."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from manyeyes.core.population import CAVEAT_SEPARATOR, Ints
from manyeyes.metrics import CalibrationError, ResultInfo, result_info
from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series, short_numbers
from manyeyes.report.downsample import downsample_minmax
from manyeyes.training.event_columns import Floats
from manyeyes.training.headline import HEADLINE_METRICS, shared_metric
from manyeyes.training.run_record import RunRecord

X_AXES = {
    "round": "rounds",
    "max_client_batches": "local batches of the largest client, summed over rounds",
    "num_images": "images trained on",
    "seconds": "seconds of training",
}
TRAINING_METRICS = {  # what events have in addition to the results of evaluations
    "train_loss": ResultInfo("training loss", higher_is_better=False),
    "selection_loss": ResultInfo("loss on the split that selects the model", higher_is_better=False),
    "update_norm": ResultInfo("mean norm of an update"),
    "images_per_second": ResultInfo("images per second"),
    "epsilon": ResultInfo("epsilon spent", higher_is_better=False),
    "clipping_norm": ResultInfo("clipping norm"),
    "seconds": ResultInfo("seconds per round", higher_is_better=False),
    "max_client_batches": ResultInfo("local batches of the largest client"),
    "num_images": ResultInfo("images per round"),
    "num_clients": ResultInfo("clients per round"),
    "bytes_up": ResultInfo("bytes uploaded per round", higher_is_better=False),
    "bytes_down": ResultInfo("bytes downloaded per round", higher_is_better=False),
    "best_round": ResultInfo("round of the best model", higher_is_better=None),
}
MAIN_METRICS = ("macro_accuracy", "micro_ap", "macro_f1", "loss", "train_loss", "update_norm", "epsilon")
NOISY_METRICS = ("train_loss", "update_norm", "images_per_second")  # whose extremes are drawn
MAX_PAGE_POINTS = 1100  # rounds of all runs together, so that a page of ten long runs has less than 400 kB
MIN_RUN_POINTS = 100
PAGE_DIGITS = 5  # of a value
SCORE = "(score)"  # stands for the metric that is shown first, where it is not the same for all runs


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only by their seed; usually one."""

    name: str
    runs: list[RunRecord]
    color: int

    @property
    def started(self) -> list[RunRecord]:
        """The runs that have events; a seed that never began does not change the mean of the others."""
        return [run for run in self.runs if run.events] or self.runs[:1]

    @property
    def finished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.is_finished]

    @property
    def scores(self) -> list[float]:
        """The last score of each finished run."""
        return [value for run in self.finished if (value := run.last(run.metric or "")) is not None]

    @property
    def label(self) -> str:
        return f"{self.name} ({len(self.started)} seeds)" if len(self.started) > 1 else self.name


def group_runs(runs: list[RunRecord]) -> list[Group]:
    """Group runs that differ only by their seed; a second run with the same seed is in a group of its own."""
    members: dict[tuple[str, int], list[RunRecord]] = {}
    repeats: Counter[tuple[str, str]] = Counter()
    for run in runs:
        seed = (run.key_without_seed, str(run.settings.get("seed")))
        members.setdefault((run.key_without_seed, repeats[seed]), []).append(run)
        repeats[seed] += 1
    names = [_shared_name(group) for group in members.values()]
    return [
        Group(
            name if names.count(name) == 1 else group[0].name,
            group,
            index if group[0].color is None else group[0].color,
        )
        for index, (name, group) in enumerate(zip(names, members.values(), strict=True))
    ]


def select(groups: list[Group], predicate: Callable[[RunRecord], bool]) -> list[Group]:
    """Return the groups, in their colors, with the runs for which a predicate holds; empty ones are left out."""
    subsets = [replace(group, runs=[run for run in group.runs if predicate(run)]) for group in groups]
    return [group for group in subsets if group.runs]


def data_caveat(runs: list[RunRecord]) -> str:
    """Return the caveats of the data of all runs, or of some of them; empty if there are none."""
    caveats = list(dict.fromkeys(caveat for run in runs for caveat in run.caveats))
    is_shared = len({run.caveats for run in runs}) == 1
    return CAVEAT_SEPARATOR.join(caveats if is_shared else [f"some runs: {caveat}" for caveat in caveats])


def metric_info(metric: str) -> ResultInfo:
    """Return how a number of an event is shown."""
    info = TRAINING_METRICS.get(metric) or result_info(metric, (CalibrationError(),))
    return replace(info, is_fraction=True) if metric.endswith("accuracy") else info


def metrics(runs: list[RunRecord]) -> list[str]:
    """Return every metric that a run has, the most important first."""
    names = [name for run in runs for name in run.columns if not metric_info(name).is_count]
    headlines = headline_metrics(runs)
    first = [name for name in (*headlines, *MAIN_METRICS) if name in names]
    is_one_score = len({shared_metric(run.metric) or run.metric for run in runs if run.metric}) == 1
    score = [SCORE] if is_one_score and len({run.metric for run in runs if run.metric}) > 1 else []
    return list(dict.fromkeys([*score, *first, *names]))


def headline_metrics(runs: list[RunRecord]) -> list[str]:
    """Return the metrics that the runs show first, and those of shared models next to personalized ones."""
    metrics = [run.metric for run in runs if run.metric]
    shared = filter(None, map(shared_metric, metrics))
    return sorted({*metrics, *shared}, key=HEADLINE_METRICS.index)


def metric_label(runs: list[RunRecord], metric: str) -> str:
    """Return the label of a metric, which names the shared model where other models of the runs are personalized."""
    if metric == SCORE:
        label = metric_info(next(shared_metric(run.metric) or run.metric for run in runs if run.metric)).label
        return f"{label}, of personalized models where a run has them"
    models = sorted({run.shared_model for run in runs if shared_metric(run.metric) == metric})
    return ", ".join([metric_info(metric).label, *([" or ".join(models)] if models else [])])


def is_fraction(runs: list[RunRecord], metric: str) -> bool:
    names = [run.metric for run in runs if run.metric] if metric == SCORE else [metric]
    return all(metric_info(name).is_fraction for name in names)


def column(run: RunRecord, metric: str) -> tuple[Ints, Floats] | None:
    """Return the rounds and values of a metric of a run; None if it does not have it."""
    return run.columns.get(run.metric or "" if metric == SCORE else metric)


def explorer(runs: list[RunRecord]) -> dict[str, Any]:
    """Return all curves of all runs, for the page's script to choose from."""
    names, groups, max_points = metrics(runs), group_runs(runs), _max_points(runs)
    has_seeds = any(len(group.runs) > 1 for group in groups)
    single_runs = [Group(run.name, [run], group.color) for group in groups for run in group.runs if has_seeds]
    labels = {name: metric_label(runs, name) for name in names}
    reference_lines = {name: list(map(vars, centralized_lines(runs, name))) for name in names}
    return {
        "metrics": [{"name": n, "label": text, "percent": is_fraction(runs, n)} for n, text in labels.items()],
        "axes": [{"name": name, "label": text} for name, text in X_AXES.items() if _has_axis(runs, name)],
        "runs": [_explorer_curves(group, names, max_points) for group in single_runs],
        "groups": [_explorer_curves(group, names, max_points) for group in groups],
        "reference_lines": {name: of_metric for name, of_metric in reference_lines.items() if of_metric},
        "has_seeds": has_seeds,
        "caveat": data_caveat(runs),
    }


def centralized_lines(runs: list[RunRecord], metric: str) -> list[ReferenceLine]:
    """Return what centralized runs reached, as lines across a chart of federated ones."""
    names = ("sampler.name", "algorithm.name")
    centralized = [run for run in runs if "centralized" in map(run.settings.get, names)]
    if not is_fraction(runs, metric) or len(centralized) == len(runs):
        return []
    return [ReferenceLine(run.name, y=float(c[1][-1])) for run in centralized if (c := column(run, metric)) is not None]


def metric_chart(
    groups: list[Group], metric: str, title: str, caption: str, name: str = "", height: int = 300, **axis: Any
) -> Chart:
    """Return a chart of a metric over rounds."""
    runs, series = [run for group in groups for run in group.runs], []
    for group in groups:
        curve = mean_curve(group.started, metric)
        if curve is not None:
            x, y, *band = (column.tolist() for column in curve)
            low, high = band or ([], [])
            series.append(Series(series_name(group, metric), x, y, low, high, color=group.color))
    y = Axis(metric_label(runs, metric), percent=is_fraction(runs, metric), **axis)
    lines = centralized_lines(runs, metric)
    return Chart(name or metric, title, Axis("rounds", integer=True), y, series, caption, lines, height, metric=metric)


def series_name(group: Group, metric: str) -> str:
    """Return the name of a group, and of which models a score is."""
    is_personalized = metric == SCORE and shared_metric(group.runs[0].metric) is not None
    return f"{group.label}, personalized" if is_personalized else group.label


def mean_curve(runs: list[RunRecord], metric: str) -> tuple[Ints, *tuple[Floats, ...]] | None:
    """Return the rounds at which all runs have the metric, and its mean; of several runs also the ends of the band."""
    columns = [of_run for run in runs if (of_run := column(run, metric)) is not None]
    if len(columns) < len(runs):
        return None
    rounds = reduce(np.intersect1d, (run_rounds for run_rounds, _ in columns))
    values_SE = np.stack([values[np.searchsorted(run_rounds, rounds)] for run_rounds, values in columns])
    mean_E = values_SE.mean(axis=0)
    if len(runs) == 1:
        return rounds, mean_E
    deviation_E = values_SE.std(axis=0, ddof=1)
    low_E, high_E = mean_E - deviation_E, mean_E + deviation_E
    if is_fraction(runs, metric):
        low_E, high_E = low_E.clip(0, 1), high_E.clip(0, 1)
    return rounds, mean_E, low_E, high_E


def is_downsampled(runs: list[RunRecord]) -> bool:
    """Return whether a run has more rounds than the page draws."""
    return any(len(run.events) > _max_points(runs) for run in runs)


def _has_axis(runs: list[RunRecord], axis: str) -> bool:
    """Return whether every run records what an axis sums up; private runs do not."""
    return axis == "round" or all(axis in run.columns for run in runs if run.rounds)


def _max_points(runs: list[RunRecord]) -> int:
    return max(MIN_RUN_POINTS, MAX_PAGE_POINTS // max(1, len(runs)))


def _explorer_curves(group: Group, names: list[str], max_points: int) -> dict[str, Any]:
    """Return x for each axis, and each metric as the number of its positions in x and its values."""
    runs = group.started
    rounds = reduce(np.intersect1d, (run.event_rounds for run in runs))
    rounds = rounds[np.isin(rounds, _drawn_rounds(runs[0], max_points))]
    axes: dict[str, Any] = {"round": rounds.tolist()}
    for axis in runs[0].cumulative:
        values_SE = [run.cumulative[axis][np.searchsorted(run.event_rounds, rounds)] for run in runs]
        axes[axis] = short_numbers(np.mean(values_SE, axis=0))
    curves: dict[str, list[Any]] = {}
    position_ids: dict[tuple[int, ...], int] = {}  # of the positions of the values of one or more metrics
    for name, curve in ((name, mean_curve(runs, name)) for name in names):
        if curve is not None:
            is_drawn = np.isin(curve[0], rounds)
            curve_rounds, *columns = (column[is_drawn] for column in curve)
            positions = tuple(np.searchsorted(rounds, curve_rounds).tolist())
            position_id = position_ids.setdefault(positions, len(position_ids))
            curves[name] = [position_id, *(_short_column(column) for column in columns)]
    texts = {"name": group.label, "score_name": series_name(group, SCORE), "color": group.color}
    return {**texts, "axes": axes, "positions": list(map(list, position_ids)), "metrics": curves}


def _short_column(values: Ints | Floats) -> Sequence[float | None]:
    """Return values for the page; one value if all are the same, such as the bytes of an update."""
    short = short_numbers(values, PAGE_DIGITS)
    return short[:1] if len(set(short)) == 1 else short


def _drawn_rounds(run: RunRecord, max_points: int) -> Ints:
    """Return the rounds that are drawn: all or, of many, those with the lowest and highest values."""
    if len(run.events) <= max_points:
        return run.event_rounds
    rounds = [run.event_rounds[[0, -1]]]
    sampled = [run.columns[name] for name in (*HEADLINE_METRICS, *NOISY_METRICS) if name in run.columns]
    for metric_rounds, values in sampled:
        rounds.append(metric_rounds[downsample_minmax(metric_rounds, values, max_points // len(sampled))])
    return np.unique(np.concatenate(rounds))


def _shared_name(runs: list[RunRecord]) -> str:
    """Return the start that the names of all runs share, without the seed."""
    if len(runs) == 1:
        return runs[0].name
    prefix = os.path.commonprefix([run.name for run in runs])  # noqa: RUF071 - of the names, which are not paths
    name = re.sub(r"[\W_]*(\b|_)s(eed)?[\W_]*\d*$", "", prefix).rstrip("_-/., ")
    return name or str(runs[0].settings.get("algorithm.name", "runs"))
