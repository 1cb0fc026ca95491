"""Top-k accuracy and the expected calibration error, against scikit-learn and hand computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import top_k_accuracy_score

from manyeyes.core.population import MultiLabels, Population
from manyeyes.metrics import Accuracy, CalibrationError, TopK


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_accuracy_equals_scikit_learn(k: int) -> None:
    rng = np.random.default_rng(k)
    scores, targets = rng.normal(size=(200, 7)), rng.integers(0, 7, 200)
    expected = top_k_accuracy_score(targets, scores, k=k, labels=np.arange(7))
    assert TopK(k).update(scores, targets).compute() == {f"top_{k}_accuracy": pytest.approx(expected)}


def test_of_equal_outputs_the_first_class_is_higher_as_in_the_accuracy() -> None:
    scores, targets = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), np.array([0, 1])
    assert TopK(1).update(scores, targets).compute()["top_1_accuracy"] == 0.5
    assert Accuracy.from_scores(scores, targets).compute()["accuracy"] == 0.5
    assert TopK(2).update(scores, targets).compute()["top_2_accuracy"] == 1.0


def test_tensors_are_accepted() -> None:
    outputs = torch.tensor([[0.0, 2.0, 1.0]], dtype=torch.bfloat16)
    assert TopK(2).update(outputs, torch.tensor([2])).compute()["top_2_accuracy"] == 1.0


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics\.top_k\.k is 0"):
        TopK(0)


def logits(confidences: list[float]) -> np.ndarray:
    """Return logits of two classes, the first of which has the confidences."""
    p = np.array(confidences)
    return np.stack([np.log(p), np.log(1 - p)], axis=1)


def ece(confidences: list[float], targets: list[int], bins: int) -> float:
    return CalibrationError(bins).update(logits(confidences), np.array(targets)).compute()["ece"]


def test_one_bin_has_the_gap_between_confidence_and_accuracy() -> None:
    assert ece([0.9, 0.7], [0, 1], bins=1) == pytest.approx(0.8 - 0.5)


def test_bins_are_weighted_by_their_examples() -> None:
    # (0.5, 0.75]: one example, correct, 0.6. (0.75, 1]: three examples, two correct, 0.9
    assert ece([0.6, 0.9, 0.9, 0.9], [0, 0, 0, 1], bins=4) == pytest.approx(1 / 4 * 0.4 + 3 / 4 * (0.9 - 2 / 3))


def test_a_calibrated_model_has_no_error() -> None:
    assert ece([0.8] * 5, [0, 0, 0, 0, 1], bins=10) == pytest.approx(0)


@pytest.mark.parametrize("bins", [5, 15])
def test_the_bins_are_those_of_scikit_learn(bins: int) -> None:
    rng = np.random.default_rng(0)
    scores, targets = 2 * rng.normal(size=(500, 4)), rng.integers(0, 4, 500)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    confidence, correct = probabilities.max(axis=1), scores.argmax(axis=1) == targets
    accuracy_M, confidence_M = calibration_curve(correct, confidence, n_bins=bins)
    count_M = np.histogram(confidence, np.linspace(0, 1, bins + 1))[0]
    expected = np.average(np.abs(accuracy_M - confidence_M), weights=count_M[count_M > 0])
    assert CalibrationError(bins).update(scores, targets).compute()["ece"] == pytest.approx(expected)


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics\.ece\.bins is 0"):
        CalibrationError(0)


@pytest.mark.parametrize("metric", [TopK(1), CalibrationError()])
def test_several_labels_per_image_are_refused(metric: TopK | CalibrationError) -> None:
    labels = MultiLabels.from_lists([[0, 1]], ("cat", "dog"))
    population = Population.from_arrays(np.zeros((1, 1, 1, 3), np.uint8), labels, [0])
    assert "needs one label per image" in str(metric.incompatibility(population))
