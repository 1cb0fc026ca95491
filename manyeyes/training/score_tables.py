"""Tables of the final scores, of each class and of each user, as CSV."""

import csv
import io
from collections.abc import Iterable
from typing import Any

from manyeyes.core.population import Population
from manyeyes.metrics import PERSONALIZED, MultiLabelScores, Score


def per_class_table(score: Score, population: Population, personalized: Score | None = None) -> str:
    """Return the scores of each class as CSV, with that of personalized models in the first column of scores."""
    if isinstance(score, MultiLabelScores):
        classes = score.per_class()
        header = ["class", "examples", "ap", "precision", "recall", "f1", "ap_200"]
        scores = [classes.ap_C, classes.precision_C, classes.recall_C, classes.f1_C, classes.ap_200_C]
        columns = [classes.support_C, *scores]
    else:
        header, columns = ["class", "examples", "accuracy"], [score.count_C, score.per_class()]
    if personalized is not None:
        columns.insert(
            1, personalized.per_class().ap_C if isinstance(personalized, MultiLabelScores) else personalized.per_class()
        )
        header.insert(2, PERSONALIZED + header[2])
    return _csv(header, zip(population.classes, *(column.tolist() for column in columns), strict=True))


def per_user_table(score: Score, population: Population, personalized: Score | None = None) -> str:
    """Return the score of each user as CSV, with that of its personalized model before that of the shared one."""
    users, metric = score.per_user(), "ap" if isinstance(score, MultiLabelScores) else "accuracy"
    user_names = map(population.user_name, range(len(population.user_ids)))
    names = dict(zip(population.user_ids.tolist(), user_names, strict=True))
    header, columns = ["user", "examples", metric], [users.values_U.tolist()]
    if personalized is not None:
        header.insert(2, PERSONALIZED + metric)
        columns.insert(0, personalized.per_user().values_U.tolist())
    return _csv(header, zip(map(names.get, users.users_U.tolist()), users.counts_U.tolist(), *columns, strict=True))


def _csv(header: list[str], rows: Iterable[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
