"""The final tables of a run: the scores of each class and of each user."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from manyeyes.core.population import Population
from manyeyes.engines.evaluation import Score
from manyeyes.metrics import MultiLabelScores
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.result import Result
from manyeyes.training.run_folder import RunFolder


class Tables(Callback):
    """Writes `per_class.csv` and `per_user.csv` at the end of a run."""

    def on_train_end(self, run: TrainingRun, result: Result) -> None:
        if run.folder is None or run.evaluator is None or result.score is None:
            return
        population = run.evaluator.population
        RunFolder(run.folder).write_tables(
            per_class_table(result.score, population),
            per_user_table(result.score, population, result.personalized),
        )


def per_class_table(score: Score, population: Population) -> str:
    """Return the scores of each class as CSV."""
    if isinstance(score, MultiLabelScores):
        classes = score.per_class()
        header = ["class", "examples", "ap", "precision", "recall", "f1"]
        columns = [classes.support_C, classes.ap_C, classes.precision_C, classes.recall_C, classes.f1_C]
    else:
        header, columns = ["class", "examples", "accuracy"], [score.count_C, score.per_class()]
    return _csv(header, zip(population.classes, *(column.tolist() for column in columns), strict=True))


def per_user_table(score: Score, population: Population, personalized: Score | None = None) -> str:
    """Return the score of each user as CSV, and that of its personalized model."""
    users, metric = score.per_user(), "ap" if isinstance(score, MultiLabelScores) else "accuracy"
    user_names = map(population.user_name, range(len(population.user_ids)))
    names = dict(zip(population.user_ids.tolist(), user_names, strict=True))
    header, columns = ["user", "examples", metric], [users.values_U.tolist()]
    if personalized is not None:
        header.append("personalized")
        columns.append(personalized.per_user().values_U.tolist())
    return _csv(header, zip(map(names.get, users.users_U.tolist()), users.counts_U.tolist(), *columns, strict=True))


def _csv(header: list[str], rows: Iterable[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
