"""Who takes part: each cohort's chances against exact ones, within five standard deviations."""

from __future__ import annotations

import numpy as np
import pytest

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients, Centralized, SizeWeightedSampler, UniformSampler
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import make_rng

DRAWS = 20_000


def population(*sizes: int) -> Population:
    """Users of the given sizes, with images of one pixel."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    labels = SingleLabels(np.zeros(len(owners), np.int64), ("any",))
    return Population.from_arrays(np.zeros((len(owners), 1, 1, 3), np.uint8), labels, owners)


def cohorts(cohort: UniformSampler | SizeWeightedSampler, population: Population, draws: int = DRAWS) -> np.ndarray:
    """The cohorts of many rounds [draws, K]."""
    return np.array([cohort.sample(population, make_rng(0, "cohort", round)) for round in range(draws)])


def assert_chances(actual: np.ndarray, expected: np.ndarray, draws: int = DRAWS) -> None:
    """Each count is binomial: within five standard deviations of its mean."""
    spread = np.sqrt(draws * expected * (1 - expected))
    assert (np.abs(actual - draws * expected) <= 5 * spread).all(), (actual / draws, expected)


def test_uniform_takes_every_user_equally_often_whatever_its_size() -> None:
    chosen = cohorts(UniformSampler(3), population(1, 2, 3, 50, 1, 1, 9, 1, 1, 1))
    assert_chances(np.bincount(chosen.ravel(), minlength=10), np.full(10, 0.3))


def test_uniform_takes_every_pair_equally_often() -> None:
    chosen = np.sort(cohorts(UniformSampler(2), population(1, 2, 3, 50)), axis=1)
    pairs = np.bincount(chosen[:, 0] * 4 + chosen[:, 1], minlength=16)[[1, 2, 3, 6, 7, 11]]
    assert_chances(pairs, np.full(6, 1 / 6))


def test_one_by_size_is_exactly_proportional() -> None:
    chosen = cohorts(SizeWeightedSampler(1), population(1, 2, 3, 10))
    assert_chances(np.bincount(chosen.ravel(), minlength=4), np.array([1, 2, 3, 10]) / 16)


def test_two_by_size_follow_one_another_without_replacement() -> None:
    """P(i, then j) = p_i p_j / (1 - p_i)."""
    chosen = cohorts(SizeWeightedSampler(2), population(1, 2, 3, 10))
    p = np.array([1, 2, 3, 10]) / 16
    expected = p[:, None] * p[None, :] / (1 - p[:, None])
    np.fill_diagonal(expected, 0)
    assert_chances(np.bincount(chosen[:, 0] * 4 + chosen[:, 1], minlength=16), expected.ravel())


def test_by_size_finds_the_last_users_next_to_a_giant() -> None:
    """Where images picked at random are nearly all the giant's, the others still come in proportion to their size."""
    chosen = cohorts(SizeWeightedSampler(2), population(40_000, 1, 3), draws=1000)
    assert (chosen == 0).any(axis=1).all()
    assert_chances(np.bincount(chosen.sum(axis=1), minlength=3)[1:], np.array([0.25, 0.75]), draws=1000)


@pytest.mark.parametrize("cohort", [UniformSampler(4), SizeWeightedSampler(4)])
def test_a_cohort_of_all_is_everyone_once(cohort: UniformSampler | SizeWeightedSampler) -> None:
    for chosen in cohorts(cohort, population(1, 2, 3, 10), draws=100):
        assert sorted(chosen) == [0, 1, 2, 3]


def test_everyone_is_every_user_in_order() -> None:
    np.testing.assert_array_equal(AllClients().sample(population(1, 5, 2), make_rng(0, "cohort")), [0, 1, 2])


def test_pooled_is_the_one_client() -> None:
    np.testing.assert_array_equal(Centralized().sample(population(1, 5, 2).pooled(), make_rng(0, "cohort")), [0])


@pytest.mark.parametrize("cohort", [UniformSampler(4), SizeWeightedSampler(4)])
def test_refuses_more_clients_than_users(cohort: UniformSampler | SizeWeightedSampler) -> None:
    assert cohort.incompatibility(fedavg(), population(1, 1, 1)) is not None
    assert cohort.incompatibility(fedavg(), population(1, 1, 1, 1)) is None
