"""The result of a run: its curves, its final scores and the trained model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from manyeyes.engines.evaluation import Score
from manyeyes.metrics import PERSONALIZED, Curve, MultiLabelScores
from manyeyes.training.run_files import Event
from manyeyes.training.trained_model import ImageInput, ModelInfo, Prediction, TrainedModel

PRINTED_METRICS = ("accuracy", "macro_accuracy", "user_mean", "macro_ap", "micro_ap", "macro_f1", "micro_f1", "loss")


@dataclass(frozen=True, eq=False)
class Scores:
    """What an evaluation returns: the scores of the shared model, and those of personalized models."""

    shared: Score | None = None
    personalized: Score | None = None

    def results(self) -> dict[str, float]:
        """Return all metrics by name, those of personalized models first."""
        shared, personalized = ({} if score is None else score.compute() for score in (self.shared, self.personalized))
        return {PERSONALIZED + name: value for name, value in personalized.items()} | shared


@dataclass(frozen=True, eq=False)
class Result:
    """What `train` returns."""

    model: nn.Module
    events: list[Event]  # one per round, as in metrics.jsonl
    score: Score | None  # of the shared model, or of personal layers, on the evaluated split after the last round
    folder: Path | None
    personalized: Score | None = None  # of the model that each client has personalized
    caveats: tuple[str, ...] = ()  # what has to be said of the result because of its data, such as "synthetic images"
    shared_model: str = "shared model"  # what the models of `score` are called next to personalized ones
    info: ModelInfo | None = None  # how the model is used

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
        scores = {"personalized models": self.personalized, self.shared_model: self.score}
        texts = {model: _format(score) for model, score in scores.items() if score is not None}
        return (
            "; ".join(f"{model}: {text}" for model, text in texts.items())
            if len(texts) > 1
            else "".join(texts.values())
        )

    def predict(self, images: ImageInput | Sequence[ImageInput]) -> list[Prediction]:
        """Return the model's prediction for each image: paths, Pillow images or uint8 arrays (see `TrainedModel`)."""
        if self.info is None:
            raise ValueError("This result does not say how its model is used: load the run with load_model.")
        return TrainedModel(self.model.eval(), self.info).predict(images)

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
