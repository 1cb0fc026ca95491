"""Curves of runs: every metric over rounds, batches, images or seconds; several seeds as a mean and a band."""

import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from manyeyes.report.chart import Axis, Chart, Mark, Series, short_numbers
from manyeyes.training.run_record import HEADLINE_METRICS, Ints, RunRecord

OVER = {
    "round": "rounds",
    "max_client_batches": "local batches of the largest client, summed over rounds",
    "num_images": "images trained on",
    "seconds": "seconds of training",
}
LABELS = {
    "accuracy": "accuracy",
    "macro_accuracy": "accuracy, classes counted alike",
    "loss": "loss on the evaluated part",
    "train_loss": "training loss",
    "update_norm": "mean length of an update",
    "images_per_second": "images a second",
    "epsilon": "epsilon spent",
    "clip": "bound on the length of an update",
    "macro_ap": "macro average precision",
    "micro_ap": "micro average precision",
    "user_mean": "users' own score, mean",
    "user_worst_decile": "users' own score, mean of the worst tenth",
    "seconds": "seconds a round",
    "max_client_batches": "local batches of the largest client",
    "num_images": "images a round",
    "num_clients": "clients a round",
}
SHARES = ("accuracy", "precision", "recall", "_f1", "_ap", "user_")  # in names of what lies between 0 and 1
COUNTS = (
    "num_users_scored",
    "num_users_unscorable",
    "user_untested",
    "examples",
    "classes_without_positives",
    "best_round",
)
POINTS = 20_000  # of all runs of a page together, where rounds are many
LEAST = 300  # of one run


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ by their seed alone; most often one."""

    name: str
    runs: list[RunRecord]
    color: int


def label(metric: str) -> str:
    adapted = metric.removeprefix("adapted_")
    words = LABELS.get(adapted, adapted.replace("_", " "))
    return f"{words}, models adapted" if adapted != metric else words


def is_share(metric: str) -> bool:
    return not is_count(metric) and any(part in metric for part in SHARES)


def is_count(metric: str) -> bool:
    return metric.removeprefix("adapted_") in COUNTS


def groups(runs: list[RunRecord]) -> list[Group]:
    """Runs that differ by their seed alone are together; one that was run again with a seed is no further seed."""
    found: dict[tuple[str, int], list[RunRecord]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for run in runs:
        which = (run.key_without_seed, str(run.settings.get("seed")))
        found.setdefault((run.key_without_seed, times[which]), []).append(run)
        times[which] += 1
    names = [_shared_name(some) for some in found.values()]
    own = [name if names.count(name) == 1 else some[0].name for name, some in zip(names, found.values(), strict=True)]
    return [Group(name, some, number) for number, (name, some) in enumerate(zip(own, found.values(), strict=True))]


def colors(runs: list[RunRecord]) -> dict[str, int]:
    """Runs that differ by their seed alone have the same colour."""
    return {run.name: group.color for group in groups(runs) for run in group.runs}


def metrics(runs: list[RunRecord]) -> list[str]:
    """Every metric that some run has, the headline first."""
    found = dict.fromkeys(name for run in runs for name in run.columns)
    names = [name for name in found if not is_count(name)]
    first = [run.metric for run in runs if run.metric]
    usual = [*first, "macro_accuracy", "micro_ap", "macro_f1", "loss", "train_loss", "update_norm", "epsilon", "clip"]
    return [*dict.fromkeys(name for name in usual if name in names), *(name for name in names if name not in usual)]


def explorer(runs: list[RunRecord]) -> dict[str, Any]:
    """All curves of all runs, for the page's script to choose from."""
    most = max(LEAST, POINTS // max(1, len(runs)))
    shown = metrics(runs)
    together = groups(runs)
    several = any(len(group.runs) > 1 for group in together)
    return {
        "metrics": [{"name": name, "label": label(name), "percent": is_share(name)} for name in shown],
        "axes": [{"name": name, "label": words} for name, words in OVER.items()],
        "runs": [
            _lines([run], run.name, group.color, shown, most) for group in together for run in group.runs if several
        ],
        "groups": [_lines(group.runs, group.name, group.color, shown, most) for group in together],
        "marks": {name: list(map(vars, found)) for name in shown if (found := bounds(runs, name))},
        "has_seeds": several,
    }


def bounds(runs: list[RunRecord], metric: str) -> list[Mark]:
    """What centralised training reached, as a line across the chart of those that are not."""
    central = [run for run in runs if _is_central(run) and metric in run.columns]
    if not is_share(metric) or len(central) == len(runs):
        return []
    return [Mark(run.name, y=float(run.columns[metric][1][-1])) for run in central]


def _is_central(run: RunRecord) -> bool:
    return run.settings.get("algorithm.select") == "pooled" or run.settings.get("algorithm.name") == "centralised"


def thinned(runs: list[RunRecord]) -> bool:
    """Whether some run has more rounds than the page shows."""
    return any(len(run.events) > max(LEAST, POINTS // len(runs)) for run in runs)


def chart(runs: list[RunRecord], metric: str, key: str, title: str, caption: str, **axis: Any) -> Chart:
    """One metric over rounds, seeds together."""
    series = []
    for group in groups(runs):
        line = _lines(group.runs, group.name, group.color, [metric], sys.maxsize, embedded=False)
        at, values, *band = line["metrics"].get(metric, ([], []))
        low, high = band or ([], [])
        x = [line["axes"]["round"][i] for i in at]
        series.append(Series(line["name"], x, values, low, high, color=group.color))
    y = Axis(label(metric), percent=is_share(metric), **axis)
    return Chart(key, title, Axis("rounds"), y, series, caption, bounds(runs, metric))


def _lines(
    runs: list[RunRecord], name: str, colour: int, shown: list[str], most: int, embedded: bool = True
) -> dict[str, Any]:
    """x of every kind and each metric as [places in x, values] or, of several seeds, [places, means, lows, highs]."""
    runs = [run for run in runs if run.events] or runs[:1]  # a seed that never began says nothing of the others
    common = reduce(np.intersect1d, (run.event_rounds for run in runs))
    common = common[np.isin(common, runs[0].event_rounds[_kept(runs[0], most)])]
    over: dict[str, Any] = {"round": common.tolist()}
    for kind in runs[0].cumulative if embedded else ():
        each = [run.cumulative[kind][np.searchsorted(run.event_rounds, common)] for run in runs]
        over[kind] = short_numbers(np.mean(each, axis=0).tolist() if len(common) else [])
    found = {}
    for metric in shown:
        columns = [run.columns.get(metric) for run in runs]
        there = [column for column in columns if column is not None]
        if len(there) < len(runs):
            continue
        rounds = reduce(np.intersect1d, (column[0] for column in there), common)
        values_SE = np.stack([column[1][np.searchsorted(column[0], rounds)] for column in there])
        mean = values_SE.mean(axis=0)
        tidy = short_numbers if embedded else list  # a chart of its own is thinned first
        found[metric] = [np.searchsorted(common, rounds).tolist(), tidy(mean.tolist())]
        if len(runs) > 1:
            wide = values_SE.std(axis=0, ddof=1)
            found[metric] += [tidy((mean - wide).tolist()), tidy((mean + wide).tolist())]
    words = f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name
    return {"name": words, "color": colour, "axes": over, "metrics": found}


def _kept(run: RunRecord, most: int) -> Ints:
    """Which events are shown: all, or of many the evaluated ones and each stretch's least and largest of what moves."""
    count = len(run.events)
    if count <= most:
        return np.arange(count)
    tested = [run.columns[name][0] for name in HEADLINE_METRICS if name in run.columns]
    evaluated = np.unique(np.concatenate([run.event_rounds[:1], *tested]))
    kept = {
        0,
        count - 1,
        *np.searchsorted(run.event_rounds, evaluated)[:: max(1, 2 * len(evaluated) // most)].tolist(),
    }
    for metric in ("train_loss", "update_norm", "images_per_second"):
        rounds, values = run.columns.get(metric, (np.zeros(0, int), np.zeros(0)))
        at = np.searchsorted(run.event_rounds, rounds)
        for some in np.array_split(np.arange(len(values)), max(1, most // 12)):
            if len(some):  # of a few values, some stretches have none
                kept |= {int(at[some[values[some].argmin()]]), int(at[some[values[some].argmax()]])}
    return np.array(sorted(kept))


def _shared_name(runs: list[RunRecord]) -> str:
    """What names of runs of one kind begin with, without the seed."""
    if len(runs) == 1:
        return runs[0].name
    letters = zip(*(run.name for run in runs), strict=False)
    same = next((n for n, some in enumerate(letters) if len(set(some)) > 1), min(len(run.name) for run in runs))
    shared = re.sub(r"[\W_]*(\b|_)s(eed)?[\W_]*$", "", runs[0].name[:same]).rstrip("_-/., ")
    return shared or str(runs[0].settings.get("algorithm.name", "runs"))
