"""The summary of runs: what they reached, how fast, and in which settings they differ."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from manyeyes.config.compose import resume_command
from manyeyes.core.algorithm import SLOTS
from manyeyes.metrics import PERSONALIZED
from manyeyes.report.chart import Chart
from manyeyes.report.curves import Group, group_runs, headline_metrics, metric_chart, metric_info, metric_label, select
from manyeyes.report.page import ChartGrid, Folded, Html
from manyeyes.report.table import Table, table_of
from manyeyes.report.text import escape, format_duration, format_mean, format_value
from manyeyes.training.headline import shared_metric
from manyeyes.training.run_names import NAME_SEPARATOR, brief_names, differing_settings
from manyeyes.training.run_record import RunRecord, format_setting

MAX_SETTING_COLUMNS = 6  # of the table of runs
MAX_SETTING_WIDTH = 24  # characters

Columns = dict[str, Callable[[RunRecord], object]]
GroupColumns = dict[str, Callable[[Group], object]]


def notes(runs: list[RunRecord]) -> list[Html]:
    """Return which runs did not finish, and which files are damaged, as a list that must not be missed."""
    sentences = []
    for run in runs:
        progress = f"{run.rounds:,} of {run.planned_rounds or '?'} rounds"
        if run.status == "empty":
            sentences.append(f"{run.name} is empty: it ended before its first evaluation.")
        elif run.status in ("diverged", "failed"):
            sentences.append(f"{run.name} {run.status} after {progress}: {run.status_note}")
        elif not run.is_finished:
            sentences.append(
                f"{run.name} is not finished: {progress} when this page was made, status {run.status}. "
                f"If it was stopped, continue it with: {resume_command(run.folder)}"
            )
        sentences += [f"{run.name}: {problem}." for problem in run.problems]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return [Html(f'<ul class="notes">{items}</ul>')] if sentences else []


def summary(runs: list[RunRecord]) -> list[Any]:
    """Return cards of one run, or a table of several: one row for runs that differ only by their seed, the best first."""
    if len(runs) == 1:
        return [_cards(runs[0])]
    groups = ranked(group_runs(runs))
    settings, num_more = _setting_columns(runs)
    columns = _result_columns(groups) | {text: partial(_group_setting, name=name) for text, name in settings.items()}
    parts = ["The runs", *(["the best first"] if is_ranked(groups) else [])]
    parts += ["and the settings in which they differ"] if settings else []
    has_seeds = len(groups) < len(runs)
    parts += ["with the mean and standard deviation over seeds that finished"] if has_seeds else []
    caption = ", ".join(parts) + (f" ({num_more} more settings differ: see Repeat)" if num_more else "")
    table = table_of(caption, [(group.name, group) for group in groups], columns)
    table = replace(table, best_row=0 if is_ranked(groups) else None, colors=[group.color for group in groups])
    if not has_seeds:
        return [table]
    by_group = [run for group in groups for run in group.runs]
    return [table, Folded("Each run", [run_table("Each run", by_group, _run_columns(runs))])]


def is_ranked(groups: list[Group]) -> bool:
    """Return whether several groups are compared by scores of one kind, on the same data."""
    metrics = {shared_metric(run.metric) or run.metric for group in groups for run in group.runs if run.metric}
    return sum(bool(group.scores) for group in groups) > 1 and len(metrics) == 1 and has_one_dataset(groups)


def has_one_dataset(groups: list[Group]) -> bool:
    runs = [run for group in groups for run in group.runs]
    return len({(_setting(run, "data.name"), _setting(run, "data.path")) for run in runs}) <= 1


def ranked(groups: list[Group]) -> list[Group]:
    """Return groups by the mean of their scores, the best first; those without one last, in their order."""
    return sorted(groups, key=lambda group: fmean(group.scores) if group.scores else -math.inf, reverse=True)


def run_table(caption: str, runs: list[RunRecord], columns: Columns) -> Table:
    return table_of(caption, [(run.name, run) for run in runs], columns)


def training_charts(groups: list[Group]) -> ChartGrid:
    titles = {"train_loss": "Training loss", "update_norm": "Norm of updates"}
    caption = "Mean over the clients of each round, before the server's step."
    available = [metric for metric in titles if any(metric in run.columns for group in groups for run in group.runs)]
    charts = [metric_chart(groups, metric, titles[metric], caption) for metric in available]
    return ChartGrid([*_shared_model_charts(groups), *charts])


def _shared_model_charts(groups: list[Group]) -> list[Chart]:
    """Return the scores of the shared models of runs whose score is that of personalized models."""
    personalized = select(groups, lambda run: shared_metric(run.metric) is not None)
    runs = [run for group in personalized for run in group.runs]
    labels = {metric: metric_label(runs, metric) for run in runs if (metric := shared_metric(run.metric))}
    caption = "For comparison: not the models that these algorithms are for."
    return [metric_chart(personalized, m, label[0].upper() + label[1:], caption) for m, label in labels.items()]


def speed(run: RunRecord) -> tuple[float, float] | None:
    """Return the median seconds per round, and the images per second of the whole run."""
    if not {"seconds", "num_images"} <= run.columns.keys():
        return None
    (rounds, seconds), (image_rounds, images) = run.columns["seconds"], run.columns["num_images"]
    is_timed = np.isin(rounds, image_rounds) & (seconds > 0)
    rounds, seconds = rounds[is_timed], seconds[is_timed]
    images = images[np.isin(image_rounds, rounds)]
    return (float(np.median(seconds)), float(images.sum() / seconds.sum())) if len(seconds) else None


def training_time(runs: list[RunRecord]) -> str:
    """Return the mean training time of runs; empty for private runs, which do not record it."""
    totals = [sum(seconds) for run in runs if (seconds := run.curve("seconds")[1])]
    return format_duration(fmean(totals)) if totals else ""


def best_model_note(run: RunRecord) -> str:
    """Return which model the last scores are of, if it is not that of the last round."""
    best = run.last("best_round")
    if best is None or best == run.rounds:
        return ""
    return f"of the model of round {best:,.0f}" if best else "of the model before training"


def _cards(run: RunRecord) -> Html:
    shared = shared_metric(run.metric)
    metrics = [run.metric, shared, f"{PERSONALIZED}loss" if shared else "loss"]
    cards = []
    for metric in (metric for metric in metrics if metric and metric in run.columns):
        info = metric_info(metric)
        notes = [best_model_note(run), f"best {_best(run, metric)}" if info.is_fraction else ""]
        cards.append(
            (
                metric_label([run], metric),
                format_value(run.last(metric), info.is_fraction),
                ", ".join(filter(None, notes)),
            )
        )
    planned = f"of {run.planned_rounds:,}" if run.planned_rounds else ""
    cards.append(("rounds", f"{run.rounds:,}", run.status if run.is_finished else planned))
    if (pace := speed(run)) is not None:
        cards.append(("images per second", f"{pace[1]:,.0f}", f"{format_duration(pace[0])} per round"))
        cards.append(("training time", training_time([run]), ""))
    if (epsilon := run.last("epsilon")) is not None:
        cohort = run.settings.get("privacy.noise_cohort_size")
        cards.append(("epsilon", f"{epsilon:.3g}", f"noise of a simulated cohort of {cohort}" if cohort else ""))
    items = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in cards
    )
    return Html(f'<dl class="cards">{"".join(items)}</dl>')


def _setting_columns(runs: list[RunRecord]) -> tuple[dict[str, str], int]:
    """Return the differing settings that are columns of the table of runs by their headings, and how many others differ."""
    distinct: dict[tuple[str, ...], str] = {}
    for name in differing_settings(runs):  # an option of the algorithm is also one of a component: shown once
        distinct.setdefault((_brief(name), *(_setting(run, name) for run in runs)), name)
    names = [name for name in distinct.values() if not _is_known(runs, name)]
    narrow = [name for name in names if max(len(_setting(run, name)) for run in runs) <= MAX_SETTING_WIDTH]
    columns = sorted(narrow, key=lambda name: name != "algorithm.name")[:MAX_SETTING_COLUMNS]
    known = {name for run in runs for name in run.settings}
    return dict(zip(brief_names(columns, known), columns, strict=True)), len(names) - len(columns)


def _is_known(runs: list[RunRecord], name: str) -> bool:
    """Return whether a setting needs no column: it has one, follows from the algorithm, or is in the names of the runs."""
    has_column = name in ("rounds", "seed") or _follows_from_algorithm(runs, name)
    return has_column or all(_is_named(run, name) for run in runs)


def _follows_from_algorithm(runs: list[RunRecord], name: str) -> bool:
    """Return whether an option that no command chose has the same value in all runs of each algorithm."""
    algorithms = [_setting(run, "algorithm.name") for run in runs]
    values = {(algorithm, _setting(run, name)) for algorithm, run in zip(algorithms, runs, strict=True)}
    is_chosen = any({name, name.removesuffix(".name")} & run.overrides.keys() for run in runs)
    is_option = name.partition(".")[0] in SLOTS or (name.startswith("algorithm.") and name != "algorithm.name")
    return is_option and not is_chosen and len(values) == len(set(algorithms))


def _result_columns(groups: list[Group]) -> GroupColumns:
    """Return the columns of the table of groups, without those that have nothing to say."""
    runs = [run for group in groups for run in group.runs]
    columns: GroupColumns = {"seeds": lambda group: len(group.finished)}
    for metric in headline_metrics(runs):
        label = metric_label(runs, metric)
        columns[f"{label}, last"] = partial(_over_seeds, metric=metric, text=_last, reduce=lambda values: values[-1])
        columns[f"{label}, best"] = partial(_over_seeds, metric=metric, text=_best, reduce=max)
    columns |= {
        "rounds": lambda group: _range([run.rounds for run in group.runs]),
        "time": lambda group: training_time(group.runs),
        "epsilon": lambda group: group.runs[0].last("epsilon"),
        "status": lambda group: ", ".join(dict.fromkeys(run.status for run in group.runs)),
    }
    is_missing = {
        "seeds": len(runs) == len(groups),
        "rounds": len({run.rounds for run in runs}) == 1,
        "time": not any("seconds" in run.columns for run in runs),
        "epsilon": all(run.last("epsilon") is None for run in runs),
        "status": all(run.is_finished for run in runs),
    }
    return {name: cell for name, cell in columns.items() if not is_missing.get(name)}


def _run_columns(runs: list[RunRecord]) -> Columns:
    columns: Columns = {"status": lambda run: run.status, "rounds": lambda run: run.rounds}
    for metric in headline_metrics(runs):
        columns[f"{metric_label(runs, metric)}, last"] = partial(_last, metric=metric)
        columns[f"{metric_label(runs, metric)}, best"] = partial(_best, metric=metric)
    return columns | {"time": lambda run: training_time([run])}


def _over_seeds(
    group: Group, metric: str, text: Callable[[RunRecord, str], str], reduce: Callable[[list[float]], float]
) -> str:
    """Return a number of the curve of a run as text or, of several, the mean and deviation over the finished ones."""
    if len(group.runs) == 1:
        return text(group.runs[0], metric)
    values = [reduce(curve) for run in group.finished if (curve := run.curve(metric)[1])]
    return format_mean(values, metric_info(metric).is_fraction)


def _range(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _last(run: RunRecord, metric: str) -> str:
    note = best_model_note(run)
    return format_value(run.last(metric), metric_info(metric).is_fraction) + (f" ({note})" if note else "")


def _best(run: RunRecord, metric: str) -> str:
    rounds, values = run.curve(metric)
    if not values:
        return ""
    best = int(np.argmax(values))
    when = f"round {rounds[best]:,}" if rounds[best] else "before training"
    return f"{format_value(values[best], metric_info(metric).is_fraction)} ({when})"


def _is_named(run: RunRecord, name: str) -> bool:
    """Return whether the name of a run has its value of a setting."""
    value = _setting(run, name)
    return bool({value, f"{_brief(name)} {value}", f"{name} {value}"} & set(run.name.split(NAME_SEPARATOR)))


def _group_setting(group: Group, name: str) -> str:
    return ", ".join(dict.fromkeys(_setting(run, name) for run in group.runs))


def _setting(run: RunRecord, name: str) -> str:
    return format_setting(run.settings.get(name))


def _brief(name: str) -> str:
    return name.removesuffix(".name").rpartition(".")[2]
