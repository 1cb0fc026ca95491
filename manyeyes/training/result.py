"""The result of a run: its curves, its final scores and the trained model."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from manyeyes.core.population import CAVEAT_SEPARATOR, Population
from manyeyes.metrics import PERSONALIZED, Curve, MultiLabelScores, Score, Scores
from manyeyes.training.headline import shared_model_name
from manyeyes.training.run_files import CAVEATS_KEY, Event, with_caveats
from manyeyes.training.run_record import RunRecord
from manyeyes.training.score_tables import per_class_table, per_user_table
from manyeyes.training.trained_model import ImageInput, ModelInfo, Prediction, TrainedModel

if TYPE_CHECKING:
    from pandas import DataFrame

    from manyeyes.report.plotting import Figure

PRINTED_METRICS = ("accuracy", "macro_accuracy", "user_mean", "macro_ap", "micro_ap", "macro_f1", "micro_f1", "loss")


@dataclass(frozen=True, eq=False)
class Result:
    """What `train` returns."""

    model: nn.Module
    events: list[Event]  # one per round, as in metrics.jsonl
    score: Score | None  # of the shared model, or of personal layers, on the evaluated split after the last round
    folder: Path | None
    personalized: Score | None = None  # of the model that each client has personalized
    caveats: tuple[str, ...] = ()  # of the data, such as "synthetic images"
    has_personal_layers: bool = False  # whether `score` is of models in which some layers stay with their client
    info: ModelInfo | None = None  # how the model is used
    evaluated: Population | None = None  # what the scores are of

    @cached_property
    def record(self) -> RunRecord:
        """The run as `load_run` returns it."""
        name = "training" if self.folder is None else self.folder.resolve().name
        settings = {CAVEATS_KEY: CAVEAT_SEPARATOR.join(self.caveats)}
        rows = [self._rows(table) for table in (per_class_table, per_user_table)]
        return RunRecord(
            name, self.folder or Path(), self.events, settings, class_rows=rows[0], user_rows=rows[1], status="finished"
        )

    def _rows(self, table: Callable[[Score, Population, Score | None], str]) -> list[dict[str, str]]:
        """Return the rows of a table of the final scores; none without an evaluation."""
        if self.score is None or self.evaluated is None:
            return []
        return [*csv.DictReader(table(self.score, self.evaluated, self.personalized).splitlines())]

    @property
    def metric(self) -> str:
        """The metric that is shown first: of personalized models if the run has them."""
        metric = "macro_ap" if isinstance(self.score, MultiLabelScores) else "accuracy"
        return metric if self.personalized is None else PERSONALIZED + metric

    @property
    def final(self) -> dict[str, float]:
        """Every metric after the last round, those of personalized models first."""
        return Scores(self.score, self.personalized).results()

    def describe(self) -> str:
        """Return the most important final metrics as text, those of personalized models first."""
        if self.score is None:
            return ""
        if self.personalized is None:
            return _format(self.score)
        shared = f"{shared_model_name(self.has_personal_layers)}: {_format(self.score)}"
        return f"personalized models: {_format(self.personalized)}; {shared}"

    def predict(self, images: ImageInput | Sequence[ImageInput]) -> list[Prediction]:
        """Return the model's prediction for each image: paths, Pillow images or uint8 arrays (see `TrainedModel`)."""
        if self.info is None:
            raise ValueError("This result does not say how its model is used: load the run with load_model.")
        return TrainedModel(self.model.eval(), self.info).predict(images)

    def to_pandas(self) -> DataFrame:
        """Return the events as a data frame: a row for each round, a column for each number."""
        return self.record.to_pandas()

    def per_class(self) -> DataFrame:
        """Return the final scores of each class as a data frame."""
        return self.record.per_class()

    def per_user(self) -> DataFrame:
        """Return the final scores of each user as a data frame."""
        return self.record.per_user()

    def plot(self, metric: str = "") -> Figure:
        """Return a chart of a metric over rounds, by default of the one that is shown first."""
        return self.record.plot(metric)

    def __repr__(self) -> str:
        return (
            f"Result({with_caveats(self.describe() or 'not evaluated', self.caveats)}; {self.record.rounds:,} rounds)"
        )

    def _repr_html_(self) -> str:
        return self.record._repr_html_()

    def curve(self, name: str | None = None) -> Curve:
        """Return a metric over rounds, with the local batches that they cost."""
        return curve(self.events, name or self.metric)


def _format(score: Score) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in score.compute().items() if name in PRINTED_METRICS)


def curve(events: Sequence[Event], name: str) -> Curve:
    """Return a metric of a run's events over rounds."""
    evaluated = [event for event in events if name in event]
    if not evaluated:
        raise ValueError(f"The run has no values of {name!r}: it was not evaluated, or the metric has another name.")
    batches = [event.get("max_client_batches") for event in events if event["round"] > 0]
    rounds, values = [event["round"] for event in evaluated], [event[name] for event in evaluated]
    return Curve.from_points(rounds, values, [count or 0 for count in batches], has_batches=None not in batches)
