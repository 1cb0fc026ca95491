"""Metrics: how good a model is, how different the users are, and what training costs.

All metrics of models follow `Metric`: they merge over batches, users and processes. `Accuracy` or `MultiLabelScores` is
always reported; the metrics of the slot (`top_k`, `ece`, a user's own) are added to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from manyeyes.metrics.accuracy import Accuracy as Accuracy
from manyeyes.metrics.accuracy import PerUser as PerUser
from manyeyes.metrics.base import Metric as Metric
from manyeyes.metrics.base import MetricSet as MetricSet
from manyeyes.metrics.base import ResultInfo as ResultInfo
from manyeyes.metrics.classification import CalibrationError as CalibrationError
from manyeyes.metrics.classification import TopK as TopK
from manyeyes.metrics.curve import Curve as Curve
from manyeyes.metrics.curve import relative_accuracy as relative_accuracy
from manyeyes.metrics.heterogeneity import emd as emd
from manyeyes.metrics.heterogeneity import emd_of_counts as emd_of_counts
from manyeyes.metrics.heterogeneity import mean_emd as mean_emd
from manyeyes.metrics.multilabel import MultiLabelScores as MultiLabelScores

PERSONALIZED = "personalized_"  # prefix of the results of models that clients have personalized
Score = Accuracy | MultiLabelScores


@dataclass(frozen=True, eq=False)
class Scores:
    """What an evaluation returns: the scores of the shared model, and those of personalized models."""

    shared: Score | None = None
    personalized: Score | None = None

    def results(self) -> dict[str, float]:
        """Return all metrics by name, those of personalized models first."""
        shared, personalized = ({} if score is None else score.compute() for score in (self.shared, self.personalized))
        return {PERSONALIZED + name: value for name, value in personalized.items()} | shared


def result_info(name: str, metrics: Sequence[Metric] = ()) -> ResultInfo:
    """Return how a result is shown; `metrics` are those of the run. For an unknown name, higher is better."""
    if name.startswith(PERSONALIZED):
        info = result_info(name.removeprefix(PERSONALIZED), metrics)
        return ResultInfo(f"{info.label}, personalized models", info.is_fraction, info.higher_is_better)
    known = {**MetricSet(tuple(metrics)).results, **Accuracy.results, **MultiLabelScores.results}
    return known.get(name, ResultInfo(name.replace("_", " ")))
