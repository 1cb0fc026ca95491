"""The score of each user in one or more runs, as a table and as a chart (FLAIR, figure 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from manyeyes.config.compose import resume_command
from manyeyes.metrics import PerUser
from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series
from manyeyes.report.table import Table, table_of
from manyeyes.training.run_files import METRICS_FILE, PER_USER_FILE, check_version
from manyeyes.training.run_record import RunRecord, read_run

PERSONALIZED_COLUMN = "personalized"  # of PER_USER_FILE
PERSONALIZED_SUFFIX = ", personalized"  # of names
METRIC_LABELS = {"accuracy": "accuracy", "ap": "average precision"}
SUMMARIES = {
    **{"mean": "mean", "weighted_mean": "weighted mean", "worst_decile": "worst 10 %"},
    **{"q05": "5 %", "q25": "25 %", "q50": "median", "q75": "75 %", "q95": "95 %"},
}
WORST_PERCENT = 10


@dataclass(frozen=True, eq=False)
class UserScores:
    """The scores of the users of a run, with the shared model or with personalized models."""

    name: str
    metric: str
    values: PerUser
    num_unscored: int  # users without enough test images for a score
    color: int

    @property
    def is_personalized(self) -> bool:
        return self.name.endswith(PERSONALIZED_SUFFIX)


def user_scores(run: RunRecord, name: str, color: int = 0) -> list[UserScores]:
    """Return the final scores of a run: of the shared model and, if it has them, of personalized models."""
    num_unscored = sum(int(run.last(count) or 0) for count in ("num_users_unscorable", "num_users_without_test"))
    columns = run.user_scores()
    metric = next(iter(columns), "")
    return [
        UserScores(
            name + (PERSONALIZED_SUFFIX if column == PERSONALIZED_COLUMN else ""), metric, values, num_unscored, color
        )
        for column, values in columns.items()
    ]


def load(folder: Path, name: str, color: int = 0) -> list[UserScores]:
    """Return the final scores in a run folder."""
    check_version(folder)
    if not (folder / PER_USER_FILE).exists():
        raise ValueError(
            f"{folder} has no {PER_USER_FILE}: give the folder of a run that has finished and was evaluated."
        )
    run = read_run(folder)
    is_damaged = any(PER_USER_FILE in problem for problem in run.problems) or not run.user_rows
    if is_damaged or run.last("num_users_scored") is None:
        raise ValueError(
            f"{PER_USER_FILE} or {METRICS_FILE} of {folder} is damaged: write the former again with "
            f"{resume_command(folder)}"
        )
    return user_scores(run, name, color)


def user_table(all_scores: Sequence[UserScores]) -> Table:
    """Return the statistics over users, a row for each run and kind of model."""
    columns: dict[str, Callable[[UserScores], str]] = {
        "users": lambda scores: f"{len(scores.values.values_U):,}",
        "not scored": lambda scores: f"{scores.num_unscored:,}",
        **{text: partial(_statistic, key=key) for key, text in SUMMARIES.items()},
    }
    return table_of("Scores of users; the weighted mean counts users by their images", all_scores, columns)


def user_chart(all_scores: Sequence[UserScores], caption: str) -> Chart:
    """Return the score of each user, from the lowest to the highest."""
    series = []
    for scores in all_scores:
        values_U = np.sort(scores.values.values_U)
        percent_U = 100 * (np.arange(len(values_U)) + 0.5) / max(1, len(values_U))
        x, y = percent_U.tolist(), values_U.tolist()
        series.append(Series(scores.name, x, y, dashed=scores.is_personalized, color=scores.color))
    labels = " or ".join(dict.fromkeys(METRIC_LABELS.get(scores.metric, scores.metric) for scores in all_scores))
    x_axis = Axis("% of users, from the lowest score to the highest", low=0, high=100)
    y_axis = Axis(f"{labels} of a user", percent=True, low=0, high=1.02)
    reference_lines = [ReferenceLine(f"worst {WORST_PERCENT} %", x=WORST_PERCENT)]
    return Chart("users", "Score of each user", x_axis, y_axis, series, caption, reference_lines)


def _statistic(scores: UserScores, key: str) -> str:
    return f"{scores.values.summary()[key]:.3f}"
