"""The summary over users, against hand computation."""

from __future__ import annotations

import numpy as np
import pytest

from manyeyes.metrics import PerUser


def test_summary_by_hand() -> None:
    # 20 users with values 0.00, 0.05, ..., 0.95; the last has 81 examples and the others one each
    values = np.arange(20) / 20
    counts = np.array([1] * 19 + [81])
    summary = PerUser(np.arange(20), values, counts, num_unscorable=4).summary()
    assert summary == pytest.approx(
        {
            "mean": 0.475,
            "weighted_mean": (8.55 + 81 * 0.95) / 100,
            "q05": 0.0475,
            "q25": 0.2375,
            "q50": 0.475,
            "q75": 0.7125,
            "q95": 0.9025,
            "worst_decile": 0.025,
        }
    )


def test_results_count_the_users_and_prefix_their_scores() -> None:
    results = PerUser(np.arange(2), np.array([0.2, 0.4]), np.array([1, 1]), num_unscorable=4).compute()
    assert (results["num_users_scored"], results["num_users_unscorable"]) == (2, 4)
    assert results["user_mean"] == pytest.approx(0.3)


def test_worst_decile_has_at_least_one_user() -> None:
    assert PerUser(np.arange(3), np.array([0.9, 0.2, 0.5]), np.ones(3, np.int64)).summary()["worst_decile"] == 0.2


def test_no_users_give_zeros() -> None:
    none = np.zeros(0, np.int64)
    assert set(PerUser(none, np.zeros(0), none).compute().values()) == {0.0}
