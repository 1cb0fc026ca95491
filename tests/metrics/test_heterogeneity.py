"""Earth mover's distance, against hand computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from manyeyes.metrics import emd, mean_emd


def test_identical_users_are_at_zero() -> None:
    histograms = [[1, 2, 3], [2, 4, 6], [10, 20, 30]]
    np.testing.assert_allclose(emd(histograms), 0, atol=1e-15)


def test_disjoint_users_come_near_two() -> None:
    # user i has class i only: |1 - 1/100| + 99 * 1/100
    np.testing.assert_allclose(emd(np.eye(100, dtype=np.int64) * 7), 1.98)


def test_the_distance_equals_its_formula_on_random_histograms() -> None:
    histograms = np.random.default_rng(0).integers(0, 4, (20, 7)) + np.eye(20, 7, dtype=np.int64)[:, ::-1]
    histograms[:, 0] += 1
    q, p = histograms / histograms.sum(axis=1, keepdims=True), histograms.sum(axis=0) / histograms.sum()
    np.testing.assert_allclose(emd(histograms), np.abs(q - p).sum(axis=1), atol=1e-14)


def test_users_are_weighted_by_their_examples() -> None:
    # q = (1, 0) with 3 examples and (0, 1) with 1, so p = (3/4, 1/4)
    np.testing.assert_allclose(emd([[3, 0], [0, 1]]), [0.5, 1.5])
    assert mean_emd([[3, 0], [0, 1]]) == pytest.approx(3 / 4 * 0.5 + 1 / 4 * 1.5)


@pytest.mark.parametrize(
    ("histograms", "message"),
    [
        ([1, 2], r"histograms has shape \(2,\)"),
        ([[1, -1]], "negative"),
        ([[1, 1], [0, 0]], "the user in row 1 has no examples"),
    ],
)
def test_bad_input_is_named(histograms: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        emd(histograms)
