"""The metric slot: several metrics as one, a user's own metric, and how results are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.registry import build, describe
from manyeyes.metrics import (
    Accuracy,
    CalibrationError,
    Metric,
    MetricSet,
    MultiLabelScores,
    PerUser,
    ResultInfo,
    TopK,
    result_info,
)

SCORES, TARGETS = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.array([0, 1])


@dataclass(frozen=True)
class MeanScore:
    """A metric of a user's own, without a declaration of its results."""

    total: float = field(default=0.0, repr=False)

    def update(self, outputs_NC: Any, targets: Any) -> MeanScore:
        return MeanScore(self.total + float(outputs_NC.sum()))

    def merge(self, other: MeanScore) -> MeanScore:
        return MeanScore(self.total + other.total)

    def compute(self) -> dict[str, float]:
        return {"total": self.total}


class Mutable:
    """A metric that changes in place, as those of other libraries."""

    def update(self, outputs_NC: Any, targets: Any) -> None: ...

    def compute(self) -> dict[str, float]:
        return {}


def population(num_classes: int) -> Population:
    labels = SingleLabels(np.zeros(1, np.int64), tuple(map(str, range(num_classes))))
    return Population.from_arrays(np.zeros((1, 1, 1, 3), np.uint8), labels, [0])


@pytest.mark.parametrize("metric", [TopK(2), CalibrationError(bins=7)])
def test_a_metric_is_built_again_from_its_description(metric: Metric) -> None:
    assert build("metric", describe("metric", metric)) == metric
    assert build("metric", describe("metric", metric.update(SCORES, TARGETS))) == metric


@pytest.mark.parametrize(
    "metric", [TopK(2), CalibrationError(), Accuracy.empty(3), MetricSet((TopK(1), CalibrationError(), MeanScore()))]
)
def test_the_grouping_of_batches_does_not_matter(metric: Any) -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    expected = metric.update(scores, targets).compute()
    one_by_one = metric
    for batch in np.split(np.arange(30), [4, 4, 17]):
        one_by_one = one_by_one.update(scores[batch], targets[batch])
    merged = metric.update(scores[20:], targets[20:]).merge(metric).merge(metric.update(scores[:20], targets[:20]))
    assert one_by_one.compute() == pytest.approx(expected)
    assert merged.compute() == pytest.approx(expected)


@pytest.mark.parametrize("metric", [TopK(2), CalibrationError()])
def test_a_metric_without_examples_is_zero(metric: Metric) -> None:
    assert set(metric.compute().values()) == {0.0}


@pytest.mark.parametrize(
    "metric",
    [
        TopK(2),
        CalibrationError(),
        Accuracy.empty(3).update(SCORES, TARGETS, [0, 1]),
        MultiLabelScores.empty(3).update(SCORES, np.eye(3)[TARGETS], [0, 1]),
    ],
)
def test_every_result_is_declared(metric: Metric) -> None:
    assert set(metric.compute()) <= set(metric.results)


def test_results_of_several_metrics_are_in_one_table() -> None:
    results = MetricSet((TopK(1), TopK(2), MeanScore())).update(SCORES, TARGETS).compute()
    assert results == {"top_1_accuracy": 0.5, "top_2_accuracy": 1.0, "total": 12.0}


def test_two_results_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'top_2_accuracy': leave one of them out"):
        MetricSet((TopK(2), TopK(2))).validate(population(3))


def test_a_metric_that_does_not_fit_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="k is 5 and the data has 3 classes"):
        MetricSet((CalibrationError(), TopK(5))).validate(population(3))
    MetricSet((CalibrationError(), TopK(3), MeanScore())).validate(population(3))


def test_a_metric_that_changes_in_place_is_refused() -> None:
    with pytest.raises(ValueError, match="update of metric Mutable returned NoneType: return a new Mutable"):
        MetricSet((Mutable(),)).update(SCORES, TARGETS)


def test_results_say_how_they_are_shown_and_compared() -> None:
    assert result_info("accuracy").is_fraction and result_info("accuracy").higher_is_better
    assert result_info("loss") == ResultInfo("loss on the evaluated split", higher_is_better=False)
    assert result_info("num_users_scored").is_count
    assert result_info("user_q05").is_fraction
    assert result_info("my_score") == ResultInfo("my score")
    assert result_info("ece", [CalibrationError()]).higher_is_better is False


def test_personalized_results_are_shown_as_the_shared_ones() -> None:
    info = result_info("personalized_macro_ap")
    assert (info.label, info.is_fraction) == ("macro average precision, personalized models", True)


def test_every_result_per_user_is_declared() -> None:
    users = PerUser(np.arange(2), np.ones(2), np.ones(2, np.int64))
    assert set(users.compute()) <= set(Accuracy.results)
