"""How the results of an evaluation are shown and compared, for reports and early stopping."""

from __future__ import annotations

from collections.abc import Sequence

from manyeyes.metrics.accuracy import Accuracy
from manyeyes.metrics.base import Metric, MetricSet, ResultInfo
from manyeyes.metrics.multilabel import MultiLabelScores

PERSONALIZED = "personalized_"  # prefix of the results of models that clients have personalized


def result_info(name: str, metrics: Sequence[Metric] = ()) -> ResultInfo:
    """Return how a result is shown; `metrics` are those of the run. An unknown name is a number that should be high."""
    if name.startswith(PERSONALIZED):
        info = result_info(name.removeprefix(PERSONALIZED), metrics)
        return ResultInfo(f"{info.label}, personalized models", info.is_fraction, info.higher_is_better)
    known = {**MetricSet(tuple(metrics)).results, **Accuracy.results, **MultiLabelScores.results}
    return known.get(name, ResultInfo(name.replace("_", " ")))
