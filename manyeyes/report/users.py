"""Every user's own result, runs side by side: a table, and the distribution over users (FLAIR, figure 5)."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from manyeyes.config.compose import resume_command
from manyeyes.metrics import PerUser
from manyeyes.report.figures import COLORS, new_axes
from manyeyes.training.run_folder import read_events

ADAPTED = ", adapted"  # after the name of a run: with the models that its clients have made their own
NAMES = {"accuracy": "accuracy", "ap": "average precision"}


@dataclass(frozen=True, eq=False)
class UserScores:
    """The users of one run, with the model as it is sent or, `adapted`, with what each has made of it."""

    metric: str
    values: PerUser
    untested: int  # users who train and hold too few examples to be tested


def load(folder: Path) -> dict[str, UserScores]:
    """The final scores in a run folder, by what of the run they are: '' as it is sent, and ', adapted'."""
    path = folder / "per_user.csv"
    if not path.exists():
        raise ValueError(f"{folder} has no per_user.csv: give the folder of a run that has ended and was evaluated")
    try:
        return _read(folder, path)
    except (ValueError, IndexError, StopIteration, OSError, csv.Error) as error:
        raise ValueError(
            f"per_user.csv or metrics.jsonl of {folder} is damaged: {resume_command(folder)} writes the former anew"
        ) from error


def _read(folder: Path, path: Path) -> dict[str, UserScores]:
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    last = next(event for event in reversed(read_events(folder / "metrics.jsonl")) if "num_users_scored" in event)
    counts = np.array([int(row[1]) for row in rows], np.int64)
    found = {}
    for column, name in zip(range(2, len(head)), ("", ADAPTED), strict=False):
        values = np.array([float(row[column]) for row in rows], np.float64)
        small = int(last.get("num_users_unscorable", 0))
        users = PerUser(np.arange(len(rows)), values, counts, small)
        found[name] = UserScores(head[2], users, int(last.get("user_untested", 0)))
    return found


def table(runs: Mapping[str, UserScores]) -> Table:
    """For a terminal."""
    made = Table("", "users", "too small", "mean", "weighted", "worst tenth", "5 %", "25 %", "median", "75 %", "95 %")
    for column in made.columns[1:]:
        column.justify = "right"
    for name, users in runs.items():
        made.add_row(name, *_cells(users))
    return made


def markdown(runs: Mapping[str, UserScores]) -> str:
    head = ["", "users", "too small", "mean", "weighted", "worst tenth", "5 %", "25 %", "median", "75 %", "95 %"]
    lines = [head, ["---", *["---:"] * 10], *([name, *_cells(users)] for name, users in runs.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw(runs: Mapping[str, UserScores]) -> Figure:
    """Each user's score, the users in order of it; the worst tenth is shaded."""
    measure = NAMES[next(iter(runs.values())).metric]
    title, height = f"Every user's own {measure}", 4.0 + 0.11 * len(runs)
    figure, axes = new_axes(title, "users, from the worst to the best", measure, height)
    axes.axvspan(0, 0.1, color="0.93", zorder=0)
    axes.annotate("worst tenth", (0.005, 1.0), fontsize=8, color="0.4", va="top")
    names = list(dict.fromkeys(name.removesuffix(ADAPTED) for name in runs))
    for name, users in runs.items():
        values = np.sort(users.values.values_U)
        place = (np.arange(len(values)) + 0.5) / max(1, len(values))
        number, style = names.index(name.removesuffix(ADAPTED)), "--" if name.endswith(ADAPTED) else "-"
        mean = float(values.mean()) if len(values) else 0.0
        axes.plot(
            place,
            values,
            style,
            color=COLORS[number % len(COLORS)],
            label=f"{name} (mean {mean:.3f})",
            drawstyle="steps-mid",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
    return figure


def _cells(users: UserScores) -> list[str]:
    found = users.values.summary()
    shown = ("mean", "weighted_mean", "worst_decile", "q05", "q25", "q50", "q75", "q95")
    small = users.values.num_unscorable + users.untested
    return [f"{len(users.values.values_U):,}", f"{small:,}", *(f"{found[name]:.3f}" for name in shown)]
