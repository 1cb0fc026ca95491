"""The plain facts of runs: what they reached, what they promise of privacy, how fast they were, how to repeat them."""

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from manyeyes.config.compose import resume_command
from manyeyes.report.curves import Group, chart, groups, is_share, label
from manyeyes.report.page import ChartGrid
from manyeyes.report.table import Table
from manyeyes.report.text import escape, format_number
from manyeyes.training.run_record import RunRecord, differing_settings

SHOWN = 6  # settings that differ, as columns of the table of runs
WIDE = 24  # characters of one that fits there


@dataclass(frozen=True)
class Cards:
    """A few numbers in large."""

    cards: list[tuple[str, str, str]]  # what it is, the number, what there is to say of it

    def html(self) -> str:
        each = (
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
            for name, value, note in self.cards
        )
        return f'<dl class="cards">{"".join(each)}</dl>'


@dataclass(frozen=True)
class Notes:
    """Sentences that must not be missed."""

    notes: list[str]

    def html(self) -> str:
        return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in self.notes)}</ul>'


def notes(runs: list[RunRecord]) -> Notes | None:
    """What is wrong with some of the runs."""
    found = []
    for run in runs:
        if run.status == "empty":
            found.append(f"{run.name} is empty: it ended before its first evaluation, so there is nothing to draw.")
        elif run.status in ("diverged", "failed"):
            found.append(
                f"{run.name} {run.status} after {run.rounds:,} of {run.planned_rounds or '?'} rounds: {run.status_note}"
            )
        elif run.status in ("running", "stale", "stopped"):
            found.append(
                f"{run.name} is not finished: {run.rounds:,} of {run.planned_rounds or '?'} rounds when this page was made. "
                f"It still runs, or was stopped and can go on: {resume_command(run.folder)}"
            )
        found += [f"{run.name}: {trouble}." for trouble in run.problems]
    return Notes(found) if found else None


def summary(runs: list[RunRecord]) -> list[Any]:
    """Of one run cards, of several a table with the settings that differ."""
    if len(runs) == 1:
        return [Cards(_cards(runs[0]))]
    apart = [name for name in differing_settings(runs) if name not in ("algorithm.name", "rounds")]
    named = len({run.settings.get("algorithm.name") for run in runs}) > 1
    brief_ones = [name for name in apart if all(len(format_setting(run.settings.get(name))) <= WIDE for run in runs)]
    shown = [*(["algorithm.name"] if named else []), *brief_ones][:SHOWN]
    metric = dict.fromkeys(run.metric for run in runs if run.metric)
    head = [
        "run",
        "state",
        "rounds",
        *(f"{label(name)}{end}" for name in metric for end in (", last", ", best")),
        "time",
    ]
    private = any(run.last("epsilon") is not None for run in runs)
    head += ["epsilon"] * private + [name.removesuffix(".name").rpartition(".")[2] for name in shown]
    rows = []
    for run in runs:
        reached = [cell for name in metric for cell in (_last(run, name), _best(run, name))]
        spent = [format_value(run.last("epsilon"))] if private else []
        rows.append(
            [run.name, run.status, f"{run.rounds:,}", *reached, duration(run), *spent]
            + [format_setting(run.settings.get(name)) for name in shown]
        )
    more = len(apart) - len([name for name in shown if name != "algorithm.name"])
    note = f" ({more} more differ: see Repeat)" if more > 0 else ""
    return [Table(f"The runs, and the settings in which they differ{note}", head, rows), *_over_seeds(runs)]


def _over_seeds(runs: list[RunRecord]) -> list[Table]:
    """Mean and standard deviation of runs that differ by their seed alone, and have come as far."""
    finished = [(group.name, [run for run in group.runs if run.is_finished]) for group in groups(runs)]
    several = [(name, some) for name, some in finished if len(some) > 1]
    names = list(dict.fromkeys(run.metric for _, some in several for run in some if run.metric))
    rows = []
    for group, done in several:
        cells = [group, str(len(done))]
        for name in names:
            last = [value for run in done if (value := run.last(name)) is not None]
            best = [max(run.curve(name)[1]) for run in done if run.curve(name)[1]]
            cells += [
                f"{100 * fmean(some):.1f} ± {100 * stdev(some):.1f} %" if len(some) > 1 else "" for some in (last, best)
            ]
        rows.append(cells)
    head = ["", "seeds", *(f"{label(name)}{end}" for name in names for end in (", last", ", best"))]
    return [Table("Over seeds: mean and standard deviation of the finished runs", head, rows)] if rows and names else []


def _cards(run: RunRecord) -> list[tuple[str, str, str]]:
    cards = []
    for name in dict.fromkeys([run.metric, "adapted_accuracy", "adapted_macro_ap", "loss"]):
        value = run.last(name) if name else None
        if name and value is not None:
            best = f"best {_best(run, name)}" if is_share(name) else ""
            cards.append((label(name), _share(value, name), ", ".join(filter(None, [kept(run), best]))))
    planned = f"of {run.planned_rounds:,}" if run.planned_rounds else ""
    cards.append(("rounds", f"{run.rounds:,}", planned if not run.is_finished else run.status))
    pace = speed(run)
    if pace is not None:
        cards.append(("images a second", f"{pace[1]:,.0f}", f"{format_seconds(pace[0])} a round"))
        cards.append(("time of training", duration(run), ""))
    spent = run.last("epsilon")
    if spent is not None:
        simulated = run.settings.get("privacy.noise_cohort")
        cards.append(("epsilon", f"{spent:.3g}", f"noise of a simulated cohort of {simulated:,}" if simulated else ""))
    return cards


def curves(together: list[Group]) -> ChartGrid:
    """Beside the chart that a person chooses: what training itself says."""
    runs = [run for group in together for run in group.runs]
    wanted = {"train_loss": "Training loss", "update_norm": "Length of updates"}
    words = "Of the clients of each round, before the server's step."
    return ChartGrid(
        [
            chart(runs, name, name, title, words)
            for name, title in wanted.items()
            if any(name in run.columns for run in runs)
        ]
    )


def speed(run: RunRecord) -> tuple[float, float] | None:
    """Median seconds a round, and images a second over the whole run."""
    played = [event for event in run.events if event.get("seconds") and "num_images" in event]
    seconds = [float(event["seconds"]) for event in played]
    return (float(np.median(seconds)), sum(event["num_images"] for event in played) / sum(seconds)) if played else None


def duration(run: RunRecord) -> str:
    total = sum(float(event.get("seconds", 0)) for event in run.events)
    return f"{total:.1f} s" if total < 120 else f"{total / 60:.1f} min" if total < 7200 else f"{total / 3600:.1f} h"


def format_seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def kept(run: RunRecord) -> str:
    """Whose scores the last ones are, where they are not those of the last round's model."""
    best = run.last("best_round")
    return "" if best is None or best == run.rounds else f"of the model of round {best:,.0f}"


def _last(run: RunRecord, metric: str) -> str:
    of = kept(run)
    return _share(run.last(metric), metric) + (f" ({of})" if of else "")


def _best(run: RunRecord, metric: str) -> str:
    rounds, values = run.curve(metric)
    if not values:
        return ""
    best = max(range(len(values)), key=values.__getitem__)
    return f"{_share(values[best], metric)} (round {rounds[best]:,})"


def _share(value: float | None, metric: str) -> str:
    return "" if value is None else f"{100 * value:.1f} %" if is_share(metric) else format_number(value)


def format_value(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def format_setting(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
