"""FLAIR's average precision at 200 thresholds: by hand, against the released definition, and against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from manyeyes.metrics import MultiLabelScores, multilabel


def logits(*sigmoids: float) -> NDArray[np.float64]:
    return np.log(np.array(sigmoids) / (1 - np.array(sigmoids)))


def examples(num_examples: int, prevalences: tuple[float, ...], seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return logits and labels of classes with these prevalences; the logits of rare classes are low."""
    rng, prevalence_C = np.random.default_rng(seed), np.array(prevalences)
    hot_NC = rng.random((num_examples, len(prevalences))) < prevalence_C
    noise_NC = rng.standard_normal(hot_NC.shape)
    return (noise_NC + 2.25 * hot_NC + np.log(prevalence_C) - 1).astype(np.float32), hot_NC


def released_ap(scores_N: NDArray[Any], hot_N: NDArray[Any]) -> float:
    """Return -sum((R[1:] - R[:-1]) * P[:-1]), as in the released `flair_metrics.py`, threshold by threshold."""
    sigmoids_N = 1 / (1 + np.exp(-scores_N.astype(np.float64)))
    thresholds = [-1e-7, *(i / 199 for i in range(1, 199)), 1 + 1e-7]
    precision, recall = [], []
    for threshold in thresholds:
        is_above_N = sigmoids_N > threshold
        correct = int((is_above_N & hot_N).sum())
        precision.append(correct / is_above_N.sum() if is_above_N.any() else 0.0)
        recall.append(correct / hot_N.sum() if hot_N.any() else 0.0)
    return -sum((recall[i + 1] - recall[i]) * precision[i] for i in range(199))


def test_scores_between_the_same_thresholds_share_one() -> None:
    # 0.9 and 0.8996 are both between 179 / 199 and 180 / 199: of the two above the threshold, one is right
    scores, hot = logits(0.9, 0.8996, 0.1, 0.05)[:, None], np.array([[1], [0], [1], [0]])
    results = MultiLabelScores.from_scores(scores, hot).compute()
    assert results["macro_ap"] == pytest.approx((1 + 2 / 3) / 2)
    assert results["macro_ap_200"] == results["micro_ap_200"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_all_scores_below_the_second_threshold_have_the_prevalence_as_precision() -> None:
    scores, hot = logits(0.004, 0.001, 0.0001, 1e-9)[:, None], np.array([[1], [0], [0], [0]])
    results = MultiLabelScores.from_scores(scores, hot).compute()
    assert (results["macro_ap"], results["macro_ap_200"]) == (1, 0.25)


def test_a_class_without_positives_counts_as_zero() -> None:
    results = MultiLabelScores.from_scores([[3.0, 3.0], [-3.0, -3.0]], [[1, 0], [0, 0]]).compute()
    assert results["macro_ap_200"] == 0.5


def test_no_examples_have_no_average_precision() -> None:
    results = MultiLabelScores.empty(2).compute()
    assert (results["macro_ap_200"], results["micro_ap_200"]) == (0, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_the_released_formula_per_class_and_overall(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilabel, "BLOCK_SCORES", 2500)  # blocks of several classes, and a last smaller one
    scores, hot = examples(700, (0.5, 0.2, 0.05, 0.01, 0.002, 0.3, 0.9, 0.1))
    scores = scores.astype(dtype)
    metric = MultiLabelScores.from_scores(scores, hot)
    expected = [released_ap(scores[:, c], hot[:, c]) for c in range(8)]
    np.testing.assert_allclose(metric.per_class().ap_200_C, expected, atol=1e-12)
    assert metric.compute()["macro_ap_200"] == pytest.approx(np.mean(expected), abs=1e-12)
    assert metric.compute()["micro_ap_200"] == pytest.approx(released_ap(scores.ravel(), hot.ravel()), abs=1e-12)


def test_it_is_the_exact_average_precision_of_scores_rounded_to_200_levels() -> None:
    scores, hot = examples(2000, (0.3, 0.05, 0.01))
    levels = np.maximum(np.ceil(199 / (1 + np.exp(-scores.astype(np.float64)))) - 1, 0)
    results = MultiLabelScores.from_scores(scores, hot).compute()
    assert results["macro_ap_200"] == pytest.approx(average_precision_score(hot, levels, average="macro"), abs=1e-12)
    assert results["micro_ap_200"] == pytest.approx(average_precision_score(hot, levels, average="micro"), abs=1e-12)


def test_it_does_not_depend_on_batches_or_their_order() -> None:
    scores, hot = examples(300, (0.3, 0.05, 0.01))
    parts = np.split(np.arange(300), [17, 150, 151])
    batches = [MultiLabelScores.from_scores(scores[part], hot[part]) for part in parts]
    single, merged = MultiLabelScores.from_scores(scores, hot), sum(batches, MultiLabelScores.empty(3))
    assert merged.compute() == single.compute()
    reordered = (batches[3] + batches[1]) + (batches[0] + batches[2])
    for name in ("macro_ap_200", "micro_ap_200"):
        assert reordered.compute()[name] == single.compute()[name]


def test_rare_classes_lose_most() -> None:
    scores, hot = examples(60_000, (0.1, 0.002))
    per_class = MultiLabelScores.from_scores(scores, hot).per_class()
    relative_loss = 1 - per_class.ap_200_C / per_class.ap_C
    assert relative_loss[0] < 0.02 < 0.2 < relative_loss[1]
