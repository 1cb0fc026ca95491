"""Expected calibration error, against scikit-learn's bins and hand computation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from manyeyes.core.population import MultiLabels, Population
from manyeyes.metrics import CalibrationError


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
    with pytest.raises(ValueError, match="bins=0: give at least 1"):
        CalibrationError(0)


def test_several_labels_per_image_are_refused() -> None:
    labels = MultiLabels.from_lists([[0, 1]], ("cat", "dog"))
    population = Population.from_arrays(np.zeros((1, 1, 1, 3), np.uint8), labels, [0])
    assert "needs one label per image" in str(CalibrationError().incompatibility(population))
