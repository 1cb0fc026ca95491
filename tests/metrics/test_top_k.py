"""Top-k accuracy, against scikit-learn and hand computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score

from manyeyes.core.population import MultiLabels, Population
from manyeyes.metrics import Accuracy, TopK


@pytest.mark.parametrize("k", [1, 2, 5])
def test_equals_scikit_learn(k: int) -> None:
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
    with pytest.raises(ValueError, match="k=0: give at least 1"):
        TopK(0)


def test_several_labels_per_image_are_refused() -> None:
    labels = MultiLabels.from_lists([[0, 1]], ("cat", "dog"))
    population = Population.from_arrays(np.zeros((1, 1, 1, 3), np.uint8), labels, [0])
    assert "needs one label per image" in str(TopK(1).incompatibility(population))
