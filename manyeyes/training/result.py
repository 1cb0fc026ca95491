"""The result of a run: its curves, its final scores and the trained model."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from manyeyes.core.population import Population
from manyeyes.io.atomic import write_text
from manyeyes.metrics import Accuracy, Curve, MultiLabelScores
from manyeyes.training.events import Event


@dataclass(frozen=True, eq=False)
class Result:
    """What `train` returns."""

    model: nn.Module
    events: list[Event]  # one for each round, as in metrics.jsonl
    score: Accuracy | MultiLabelScores | None  # on the evaluated split, after the last round
    folder: Path | None
    personalized: Accuracy | MultiLabelScores | None = None  # with the model that each client has made its own

    @property
    def metric(self) -> str:
        """The metric that a table shows first."""
        return "macro_ap" if isinstance(self.score, MultiLabelScores) else "accuracy"

    @property
    def final(self) -> dict[str, float]:
        """Every metric after the last round."""
        return results(self.score, self.personalized)

    def curve(self, name: str | None = None) -> Curve:
        """A metric over rounds, with the local batches that they cost."""
        return curve(self.events, name or self.metric)


def results(score: Accuracy | MultiLabelScores | None, adapted: Accuracy | MultiLabelScores | None) -> dict[str, float]:
    """All metrics: of the model as it is sent, then `adapted_` of what each client has made of it."""
    after = {} if adapted is None else adapted.compute()
    return ({} if score is None else score.compute()) | {f"adapted_{name}": value for name, value in after.items()}


def headline(score: Accuracy | MultiLabelScores | None) -> str:
    """The first metric of a score in words, for a progress line."""
    if score is None:
        return ""
    name = "macro_ap" if isinstance(score, MultiLabelScores) else "accuracy"
    return f"{name} {score.compute()[name]:.3f}"


def curve(events: list[Event], name: str) -> Curve:
    """A metric of a run's events over rounds."""
    seen = [event for event in events if name in event]
    if not seen:
        raise ValueError(f"this run has no values of {name!r}: it was not evaluated, or the name is another")
    batches = [event["batches"] for event in events if event["round"] > 0]
    return Curve.from_points([event["round"] for event in seen], [event[name] for event in seen], batches)


def write_tables(
    folder: Path,
    score: Accuracy | MultiLabelScores,
    population: Population,
    adapted: Accuracy | MultiLabelScores | None = None,
) -> None:
    """`per_class.csv` and `per_user.csv`: the final scores in detail, each user's also with its adapted model."""
    if isinstance(score, MultiLabelScores):
        classes = score.per_class()
        head = ["class", "examples", "ap", "precision", "recall", "f1"]
        columns = [classes.support_C, classes.ap_C, classes.precision_C, classes.recall_C, classes.f1_C]
        users, measure = score.per_user(), "ap"
    else:
        head, columns = ["class", "examples", "accuracy"], [score.count_C, score.per_class()]
        users, measure = score.per_user(), "accuracy"
    rows = zip(population.classes, *(column.tolist() for column in columns), strict=True)
    write_text(folder / "per_class.csv", _csv(head, rows))
    names = dict(
        zip(population.user_ids.tolist(), map(population.user_name, range(len(population.user_ids))), strict=True)
    )
    values = [users.values_U.tolist()] + ([] if adapted is None else [adapted.per_user().values_U.tolist()])
    each = zip(map(names.get, users.users_U.tolist()), users.counts_U.tolist(), *values, strict=True)
    write_text(folder / "per_user.csv", _csv(["user", "examples", measure, "adapted"][: 2 + len(values)], each))


def _csv(head: list[str], rows: object) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)  # type: ignore[arg-type]
    return text.getvalue()
