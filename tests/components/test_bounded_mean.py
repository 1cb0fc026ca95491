"""Bounds of norms, directions and weights, compared with values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from manyeyes.components.bounded_mean import BoundedMean, bound_shares, is_opposed, norm_scales


def scales(norms: list[float], max_ratio: float = 2, reject_ratio: float = 8) -> list[float]:
    return norm_scales(np.array(norms), max_ratio, reject_ratio).tolist()


def test_norms_are_bounded_by_multiples_of_their_median() -> None:
    assert scales([1, 1, 4, 9]) == [1, 1, 0.5, 0]  # the lower median is 1
    assert scales([1, 1, 4, 9], math.inf, math.inf) == [1, 1, 1, 1]


def test_two_norms_have_no_median_that_one_client_does_not_choose() -> None:
    assert scales([1, 1000]) == [1, 1]


def test_where_most_updates_are_zero_any_other_is_left_out() -> None:
    assert scales([0, 0, 1e-6, 0]) == [1, 1, 0, 1]


def test_an_update_is_opposed_if_most_others_agree_and_it_does_not() -> None:
    agreeing = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1]])
    assert is_opposed(torch.cat([agreeing, -5 * agreeing[:1]])).tolist() == [False, False, False, True]
    assert not is_opposed(torch.cat([agreeing, torch.tensor([[0.0, 1.0]])])).any()  # a right angle is not opposed
    assert not is_opposed(torch.cat([agreeing[:2], -agreeing[:1]])).any()  # two clients do not outvote a third
    assert not is_opposed(torch.eye(6)).any()  # no two agree


def test_of_many_updates_each_is_compared_with_some() -> None:
    updates = torch.ones(40, 3) * torch.linspace(1, 2, 40)[:, None]
    updates[[3, 11, 26]] *= -1
    opposed = is_opposed(updates, max_references=15)
    assert np.flatnonzero(opposed).tolist() == [3, 11, 26]  # at most 3 of the 15 are opposed


def test_one_of_four_weights_is_at_most_one_and_a_half_equal_shares() -> None:
    bounded = bound_shares(np.array([1.0, 1.0, 1.0, 1e5]), 1.5)
    assert bounded.tolist() == [1, 1, 1, pytest.approx(1.8)]  # 1.8 = 1.5 / 4 * (3 + 1.8)
    np.testing.assert_array_equal(bound_shares(np.array([2.0, 3.0, 2.0]), 1.5), [2, 3, 2])


def test_the_bounded_mean_of_a_hostile_update() -> None:
    updates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-4.0, 0.0]])
    mean, _ = BoundedMean().aggregate(updates, torch.ones(4), torch.zeros(2), {})
    torch.testing.assert_close(mean, torch.tensor([1.0, 0.0]))  # it points against the others
    mean, _ = BoundedMean(reject_opposed=False).aggregate(updates, torch.ones(4), torch.zeros(2), {})
    torch.testing.assert_close(mean, torch.tensor([(3 - 2) / 4, 0.0]))
