"""Advice: given where a round is one small step, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from manyeyes.algorithms import centralized, fedavg, fedvc
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.training.advice import batch_size_advice


def users_of(num_images: int) -> Population:
    """Return four users with this many images each."""
    count = 4 * num_images
    labels = SingleLabels(np.zeros(count, np.int64), ("one", "two"))
    return Population.from_arrays(np.zeros((count, 8, 8, 3), np.uint8), labels, np.arange(count) // num_images)


@pytest.mark.parametrize(
    ("num_images", "algorithm", "fix"),
    [
        (8, fedavg(), "algorithm.batch_size to 4 or less, or algorithm.epochs to 5 or more"),
        (31, fedavg(), "algorithm.batch_size to 8 or less, or algorithm.epochs to 5 or more"),
        (2, fedavg(), "algorithm.epochs to 5 or more"),
        (32, fedavg(), "algorithm.batch_size to 16 or less, or algorithm.epochs to 5 or more"),
        (33, fedavg(), ""),  # more than half a batch
        (8, fedavg(batch_size=4), ""),
        (8, fedavg(epochs=2), ""),
        (8, fedavg(batch_size=32), ""),  # which was chosen
        (8, fedvc(), ""),  # virtual clients have 256 images
        (8, centralized(), ""),
    ],
)
def test_advice_is_given_where_a_round_is_one_small_step(num_images: int, algorithm: Algorithm, fix: str) -> None:
    advice = batch_size_advice(algorithm, users_of(num_images))
    assert advice.endswith(f"set {fix}.") if fix else advice == ""
