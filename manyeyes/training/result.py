"""The result of a run: its curves, its final scores and the trained model."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from manyeyes.engines.evaluation import Score
from manyeyes.metrics import PERSONALIZED, Curve, MultiLabelScores
from manyeyes.training.run_files import Event


@dataclass(frozen=True, eq=False)
class Scores:
    """What an evaluation returns: the scores of the shared model, and those of personalized models."""

    shared: Score | None = None
    personalized: Score | None = None

    def results(self) -> dict[str, float]:
        """Return all metrics by name."""
        shared, personalized = ({} if score is None else score.compute() for score in (self.shared, self.personalized))
        return shared | {PERSONALIZED + name: value for name, value in personalized.items()}


@dataclass(frozen=True, eq=False)
class Result:
    """What `train` returns."""

    model: nn.Module
    events: list[Event]  # one per round, as in metrics.jsonl
    score: Score | None  # of the shared model on the evaluated split, after the last round
    folder: Path | None
    personalized: Score | None = None  # of the model that each client has personalized
    caveats: tuple[str, ...] = ()  # what has to be said of the result because of its data, such as "synthetic images"

    @property
    def metric(self) -> str:
        """The metric that a table shows first."""
        return "macro_ap" if isinstance(self.score, MultiLabelScores) else "accuracy"

    @property
    def final(self) -> dict[str, float]:
        """Every metric after the last round."""
        return Scores(self.score, self.personalized).results()

    def curve(self, name: str | None = None) -> Curve:
        """Return a metric over rounds, with the local batches that they cost."""
        return curve(self.events, name or self.metric)


def curve(events: list[Event], name: str) -> Curve:
    """Return a metric of a run's events over rounds."""
    evaluated = [event for event in events if name in event]
    if not evaluated:
        raise ValueError(f"The run has no values of {name!r}: it was not evaluated, or the metric has another name.")
    batches = [event.get("max_client_batches") for event in events if event["round"] > 0]
    rounds, values = [event["round"] for event in evaluated], [event[name] for event in evaluated]
    return Curve.from_points(rounds, values, [count or 0 for count in batches], has_batches=None not in batches)
