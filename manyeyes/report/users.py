"""The score of each user in one or more runs, as a table and as a chart (FLAIR, figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from manyeyes.config.compose import resume_command
from manyeyes.metrics import PerUser
from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series
from manyeyes.report.table import Table
from manyeyes.report.text import format_value
from manyeyes.training.run_files import METRICS_FILE, PER_USER_FILE, PRIVACY_FILE, check_version, with_caveats
from manyeyes.training.run_reader import read_run
from manyeyes.training.run_record import RunRecord

PERSONALIZED_COLUMN = "personalized"  # how the column of PER_USER_FILE begins
METRIC_LABELS = {"accuracy": "accuracy", "ap": "average precision"}
SUMMARIES = {
    "mean": "mean", "weighted_mean": "weighted mean", "worst_decile": "worst 10 %",
    "q05": "5 %", "q25": "25 %", "q50": "median", "q75": "75 %", "q95": "95 %",
}  # fmt: skip
WORST_PERCENT = 10


@dataclass(frozen=True, eq=False)
class UserScores:
    """The scores of the users of a run, with personalized models or with the shared one."""

    name: str
    metric: str
    values: PerUser
    num_unscored: int  # users without enough test images for a score
    color: int
    is_headline: bool = True  # false for the shared model next to personalized ones


def user_scores(run: RunRecord, name: str, color: int = 0) -> list[UserScores]:
    """Return the final scores of a run: of personalized models, if it has them, and of the shared model."""
    num_unscored = sum(int(run.last(count) or 0) for count in ("num_users_unscorable", "num_users_without_test"))
    columns = run.user_scores()
    metric = next((column for column in columns if not column.startswith(PERSONALIZED_COLUMN)), None)
    if metric is None:
        return []
    shared = UserScores(name, metric, columns.pop(metric), num_unscored, color)
    if not columns:
        return [shared]
    (personalized,) = columns.values()
    return [
        replace(shared, name=f"{name}, personalized", values=personalized),
        replace(shared, name=f"{name}, {run.shared_model}", is_headline=False),
    ]


def load(folder: Path, name: str, color: int = 0) -> list[UserScores]:
    """Return the final scores in a run folder."""
    check_version(folder)
    if not (folder / PER_USER_FILE).exists():
        fix = "give the folder of a run that has finished and was evaluated"
        if (folder / PRIVACY_FILE).exists():
            fix = "a private run writes the scores of its training users only with unprotected_statistics=true"
        raise ValueError(f"{folder} has no {PER_USER_FILE}: {fix}.")
    run = read_run(folder)
    is_damaged = any(PER_USER_FILE in problem for problem in run.problems) or not run.user_rows
    if is_damaged or run.last("num_users_scored") is None:
        files, command = f"{PER_USER_FILE} or {METRICS_FILE}", resume_command(folder)
        raise ValueError(f"{files} of {folder} is damaged: write the former again with {command}")
    return user_scores(run, with_caveats(name, run.caveats), color)


def user_table(all_scores: Sequence[UserScores]) -> Table:
    """Return the statistics over users, a row for each run and kind of model."""
    rows = []
    for scores in all_scores:
        summary = scores.values.summary()
        counts = [f"{len(scores.values.values_U):,}", f"{scores.num_unscored:,}"]
        rows.append([scores.name, *counts, *(format_value(summary[key], percent=True) for key in SUMMARIES)])
    header = ["", "users", "not scored", *SUMMARIES.values()]
    return Table("Scores of users; the weighted mean counts users by their images", header, rows)


def user_chart(all_scores: Sequence[UserScores], caption: str) -> Chart:
    """Return the score of each user, from the lowest to the highest."""
    series = []
    for scores in all_scores:
        values_U = np.sort(scores.values.values_U)
        percent_U = 100 * (np.arange(len(values_U)) + 0.5) / max(1, len(values_U))
        columns = percent_U.tolist(), values_U.tolist()
        series.append(Series(scores.name, *columns, dashed=not scores.is_headline, color=scores.color))
    labels = " or ".join(dict.fromkeys(METRIC_LABELS.get(scores.metric, scores.metric) for scores in all_scores))
    x_axis = Axis("% of users, from the lowest score to the highest", low=0, high=100)
    y_axis = Axis(f"{labels} of a user", percent=True, low=0, high=1.02)
    reference_lines = [ReferenceLine(f"worst {WORST_PERCENT} %", x=WORST_PERCENT)]
    return Chart("users", "Score of each user", x_axis, y_axis, series, caption, reference_lines)
