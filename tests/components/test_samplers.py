"""Which clients take part: sampling frequencies against exact probabilities, within five standard deviations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg, fedvc
from manyeyes.components import (
    BF16,
    SGD,
    AllClients,
    Centralized,
    Median,
    SizeWeightedSampler,
    TopK,
    UniformSampler,
    WeightUniformly,
)
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.privacy.mechanisms import CentralDP

NUM_COHORTS = 20_000


def make_population(*sizes: int) -> Population:
    """Return users with these numbers of images of one pixel."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    labels = SingleLabels(np.zeros(len(owners), np.int64), ("any",))
    return Population.from_arrays(np.zeros((len(owners), 1, 1, 3), np.uint8), labels, owners)


def sample_cohorts(
    sampler: UniformSampler | SizeWeightedSampler, population: Population, num_cohorts: int = NUM_COHORTS
) -> np.ndarray:
    """Return the cohorts of many rounds [R, K]."""
    return np.array([sampler.sample(population, make_rng(0, "cohort", round)) for round in range(num_cohorts)])


def assert_frequencies(actual: np.ndarray, expected: np.ndarray, num_cohorts: int = NUM_COHORTS) -> None:
    """Check that each count, which is binomial, is within five standard deviations of its mean."""
    stddev = np.sqrt(num_cohorts * expected * (1 - expected))
    assert (np.abs(actual - num_cohorts * expected) <= 5 * stddev).all(), (actual / num_cohorts, expected)


def test_uniform_samples_every_user_equally_often_whatever_its_size() -> None:
    cohorts = sample_cohorts(UniformSampler(3), make_population(1, 2, 3, 50, 1, 1, 9, 1, 1, 1))
    assert_frequencies(np.bincount(cohorts.ravel(), minlength=10), np.full(10, 0.3))


@pytest.mark.slow
def test_uniform_samples_every_pair_equally_often() -> None:
    cohorts = np.sort(sample_cohorts(UniformSampler(2), make_population(1, 2, 3, 50)), axis=1)
    pairs = np.bincount(cohorts[:, 0] * 4 + cohorts[:, 1], minlength=16)[[1, 2, 3, 6, 7, 11]]
    assert_frequencies(pairs, np.full(6, 1 / 6))


def test_one_size_weighted_client_is_sampled_in_proportion() -> None:
    cohorts = sample_cohorts(SizeWeightedSampler(1), make_population(1, 2, 3, 10))
    assert_frequencies(np.bincount(cohorts.ravel(), minlength=4), np.array([1, 2, 3, 10]) / 16)


def test_two_size_weighted_clients_are_sampled_without_replacement() -> None:
    """P(i, then j) = p_i p_j / (1 - p_i)."""
    cohorts = sample_cohorts(SizeWeightedSampler(2), make_population(1, 2, 3, 10))
    p = np.array([1, 2, 3, 10]) / 16
    expected = p[:, None] * p[None, :] / (1 - p[:, None])
    np.fill_diagonal(expected, 0)
    assert_frequencies(np.bincount(cohorts[:, 0] * 4 + cohorts[:, 1], minlength=16), expected.ravel())


@pytest.mark.slow
def test_size_weighted_completes_the_cohort_next_to_a_giant_user() -> None:
    """Nearly all random images are the giant's; the others are still sampled in proportion to their size."""
    cohorts = sample_cohorts(SizeWeightedSampler(2), make_population(40_000, 1, 3), num_cohorts=1000)
    assert (cohorts == 0).any(axis=1).all()
    assert_frequencies(np.bincount(cohorts.sum(axis=1), minlength=3)[1:], np.array([0.25, 0.75]), num_cohorts=1000)


def test_with_replacement_every_draw_is_in_proportion_and_independent() -> None:
    cohorts = sample_cohorts(SizeWeightedSampler(2, replacement=True), make_population(1, 2, 3, 10))
    p = np.array([1, 2, 3, 10]) / 16
    assert_frequencies(np.bincount(cohorts[:, 0] * 4 + cohorts[:, 1], minlength=16), np.outer(p, p).ravel())


def test_without_replacement_ten_of_eleven_clients_have_nearly_equal_shares() -> None:
    """As on Geo-30k: the client with 0.30 of the images gets 0.10 of the draws, and with replacement 0.30."""
    population, num_cohorts = make_population(30, *[7] * 10), 2000
    without = sample_cohorts(SizeWeightedSampler(10), population, num_cohorts)
    with_replacement = sample_cohorts(SizeWeightedSampler(10, replacement=True), population, num_cohorts)
    assert (without == 0).mean() == pytest.approx(0.1, abs=0.001)
    num_draws = 10 * num_cohorts
    assert_frequencies((with_replacement == 0).sum(keepdims=True), np.array([0.3]), num_draws)


CONFLICTS: dict[str, Any] = {
    "correction": NAMED_ALGORITHMS["scaffold"](),
    "correction ": NAMED_ALGORITHMS["feddyn"](),
    "correction  ": NAMED_ALGORITHMS["mimelite"](),
    "personal_layers": NAMED_ALGORITHMS["fedper"](),
    "personal_model": NAMED_ALGORITHMS["ditto"](),
    "client_optimizer.persist_state": replace(fedavg(), client_optimizer=SGD(0.1, 0.9, persist_state=True)),
    "compressor": replace(fedavg(), compressor=TopK(0.1)),
    "aggregator": replace(fedavg(), aggregator=Median(), client_weighting=WeightUniformly()),
    "privacy": replace(fedavg(), privacy=CentralDP(), client_weighting=WeightUniformly()),
}


@pytest.mark.parametrize("slot", CONFLICTS)
def test_repeats_are_refused_where_a_client_must_be_there_once(slot: str) -> None:
    algorithm = replace(CONFLICTS[slot], sampler=SizeWeightedSampler(2, replacement=True))
    message = rf"^sampler.replacement=true .* and {slot.strip()} needs .*: set sampler.replacement=false$"
    with pytest.raises(ValueError, match=message):
        algorithm.validate(make_population(1, 2, 3))


def test_repeats_are_allowed_where_clients_keep_nothing() -> None:
    for algorithm in (fedvc(5, replacement=True), replace(fedvc(5, replacement=True), compressor=BF16())):
        algorithm.validate(make_population(1, 2, 3))


@pytest.mark.parametrize("sampler", [UniformSampler(4), SizeWeightedSampler(4)])
def test_a_cohort_of_all_users_has_each_once(sampler: UniformSampler | SizeWeightedSampler) -> None:
    for cohorts in sample_cohorts(sampler, make_population(1, 2, 3, 10), num_cohorts=100):
        assert sorted(cohorts) == [0, 1, 2, 3]


def test_all_clients_is_every_user_in_order() -> None:
    np.testing.assert_array_equal(AllClients().sample(make_population(1, 5, 2), make_rng(0, "cohort")), [0, 1, 2])


def test_centralized_is_the_one_client() -> None:
    np.testing.assert_array_equal(Centralized().sample(make_population(1, 5, 2).pooled(), make_rng(0, "cohort")), [0])


@pytest.mark.parametrize("sampler", [UniformSampler(4), SizeWeightedSampler(4)])
def test_more_clients_than_users_are_refused(sampler: UniformSampler | SizeWeightedSampler) -> None:
    assert sampler.incompatibility(fedavg(), make_population(1, 1, 1)) is not None
    assert sampler.incompatibility(fedavg(), make_population(1, 1, 1, 1)) is None
