"""The summary of runs: what they reached, how fast, and in which settings they differ."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np

from manyeyes.config.compose import resume_command
from manyeyes.core.algorithm import SLOTS
from manyeyes.metrics import PERSONALIZED
from manyeyes.report.chart import Chart
from manyeyes.report.curves import Group, group_runs, headline_metrics, metric_chart, metric_info, metric_label
from manyeyes.report.page import ChartGrid, Html
from manyeyes.report.table import Table, table_of
from manyeyes.report.text import escape, format_duration, format_value
from manyeyes.training.headline import shared_metric
from manyeyes.training.run_record import RunRecord, differing_settings

MAX_SETTING_COLUMNS = 6  # of the table of runs
MAX_SETTING_WIDTH = 24  # characters

Columns = dict[str, Callable[[RunRecord], object]]


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
    """Return cards of one run, or tables of several."""
    if len(runs) == 1:
        return [_cards(runs[0])]
    settings, num_more = _setting_columns(runs)
    columns: Columns = {"status": lambda run: run.status, "rounds": lambda run: run.rounds}
    for metric in headline_metrics(runs):
        columns[f"{metric_label(runs, metric)}, last"] = partial(_last, metric=metric)
        columns[f"{metric_label(runs, metric)}, best"] = partial(_best, metric=metric)
    if any("seconds" in run.columns for run in runs):
        columns["time"] = training_time
    if any(run.last("epsilon") is not None for run in runs):
        columns["epsilon"] = lambda run: run.last("epsilon")
    columns |= {text: partial(_setting, name=name) for text, name in settings.items()}
    note = f" ({num_more} more differ: see Reproduce)" if num_more else ""
    return [run_table(f"The runs, and the settings in which they differ{note}", runs, columns), *_over_seeds(runs)]


def run_table(caption: str, runs: list[RunRecord], columns: Columns) -> Table:
    return table_of(caption, [(run.name, run) for run in runs], columns)


def training_charts(runs: list[RunRecord]) -> ChartGrid:
    titles = {"train_loss": "Training loss", "update_norm": "Norm of updates"}
    caption = "Mean over the clients of each round, before the server's step."
    available = [metric for metric in titles if any(metric in run.columns for run in runs)]
    charts = [metric_chart(runs, metric, titles[metric], caption) for metric in available]
    return ChartGrid([*_shared_model_charts(runs), *charts])


def _shared_model_charts(runs: list[RunRecord]) -> list[Chart]:
    """Return the scores of the shared models of runs whose score is that of personalized models."""
    personalized = [run for run in runs if shared_metric(run.metric)]
    metrics = dict.fromkeys(metric for run in personalized if (metric := shared_metric(run.metric)))
    labels = {metric: metric_label(runs, metric) for metric in metrics}
    caption = "For comparison: not the models that these algorithms are for."
    return [metric_chart(personalized, m, label[0].upper() + label[1:], caption) for m, label in labels.items()]


def speed(run: RunRecord) -> tuple[float, float] | None:
    """Return the median seconds per round, and the images per second of the whole run."""
    events = [event for event in run.events if event.get("seconds") and "num_images" in event]
    seconds = [float(event["seconds"]) for event in events]
    return (float(np.median(seconds)), sum(event["num_images"] for event in events) / sum(seconds)) if events else None


def training_time(run: RunRecord) -> str:
    seconds = [float(event["seconds"]) for event in run.events if "seconds" in event]
    return format_duration(sum(seconds)) if seconds else ""  # private runs do not record it


def format_setting(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def best_model_note(run: RunRecord) -> str:
    """Return which model the last scores are of, if it is not that of the last round."""
    best = run.last("best_round")
    return "" if best is None or best == run.rounds else f"of the model of round {best:,.0f}"


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
        cards.append(("training time", training_time(run), ""))
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
    names = [name for name in distinct.values() if name != "rounds" and not _follows_from_algorithm(runs, name)]
    narrow = [name for name in names if all(len(_setting(run, name)) <= MAX_SETTING_WIDTH for run in runs)]
    columns = sorted(narrow, key=lambda name: name != "algorithm.name")[:MAX_SETTING_COLUMNS]
    brief = list(map(_brief, columns))
    headings = [text if brief.count(text) == 1 else name for text, name in zip(brief, columns, strict=True)]
    return dict(zip(headings, columns, strict=True)), len(names) - len(columns)


def _follows_from_algorithm(runs: list[RunRecord], name: str) -> bool:
    """Return whether an option of a component has the same value in all runs of each algorithm."""
    algorithms = [_setting(run, "algorithm.name") for run in runs]
    values = {(algorithm, _setting(run, name)) for algorithm, run in zip(algorithms, runs, strict=True)}
    return name.partition(".")[0] in SLOTS and len(values) == len(set(algorithms))


def _over_seeds(runs: list[RunRecord]) -> list[Table]:
    """Return the mean and standard deviation of the finished runs of each group that has several."""
    groups = [replace(group, runs=[run for run in group.runs if run.is_finished]) for group in group_runs(runs)]
    groups = [group for group in groups if len(group.runs) > 1]
    columns: dict[str, Callable[[Group], object]] = {"seeds": lambda group: len(group.runs)}
    grouped = [run for group in groups for run in group.runs]
    for metric in headline_metrics(grouped):
        label = metric_label(grouped, metric)
        columns[f"{label}, last"] = partial(_over_group, metric=metric, reduce=lambda values: values[-1])
        columns[f"{label}, best"] = partial(_over_group, metric=metric, reduce=max)
    caption = "Over seeds: mean and standard deviation of the finished runs"
    return [table_of(caption, [(group.name, group) for group in groups], columns)] if len(columns) > 1 else []


def _over_group(group: Group, metric: str, reduce: Callable[[list[float]], float]) -> str:
    """Return the mean and standard deviation of one number of each run's curve."""
    fractions = [reduce(values) for run in group.runs if (values := run.curve(metric)[1])]
    return f"{100 * fmean(fractions):.1f} ± {100 * stdev(fractions):.1f} %" if len(fractions) > 1 else ""


def _last(run: RunRecord, metric: str) -> str:
    note = best_model_note(run)
    return format_value(run.last(metric), metric_info(metric).is_fraction) + (f" ({note})" if note else "")


def _best(run: RunRecord, metric: str) -> str:
    rounds, values = run.curve(metric)
    if not values:
        return ""
    best = int(np.argmax(values))
    return f"{format_value(values[best], metric_info(metric).is_fraction)} (round {rounds[best]:,})"


def _setting(run: RunRecord, name: str) -> str:
    return format_setting(run.settings.get(name))


def _brief(name: str) -> str:
    return name.removesuffix(".name").rpartition(".")[2]
