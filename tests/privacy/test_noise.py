"""The noise of a private sum has exactly the standard deviation that is accounted for.

The noise comes from the operating system; a correct program fails a test once in a million times.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.components import SGD, AllClients, MatchingLayers, PoissonSampler, UniformSampler
from manyeyes.core.round import run_round
from manyeyes.privacy.mechanisms import CentralDP, GaussianSource, LocalDP
from tests.privacy.private_runs import (
    NUM_USERS,
    POPULATION,
    assert_stddev,
    first_state,
    gaussian_delta,
    make_result,
    open_engine,
    os_seed,
    private_algorithm,
    privatize,
)


def adaptive(**options: Any) -> CentralDP:
    """Return a mechanism with z = 2 whose clipping norm follows the median."""
    return CentralDP(noise_multiplier=2.0, target_quantile=0.5, clip_learning_rate=0.2, **options)


@pytest.mark.parametrize(
    ("sampler", "cohort_size"), [(PoissonSampler(20), 20), (UniformSampler(20), 20), (AllClients(), NUM_USERS)]
)
def test_the_stddev_of_the_sum_is_z_clipping_norms_and_the_mean_is_over_the_expected_cohort(
    sampler: Any, cohort_size: int
) -> None:
    privacy = private_algorithm(CentralDP(noise_multiplier=1.7, clipping_norm=0.3), sampler=sampler).privacy
    mean, state = privatize(privacy, np.ones(13), os_seed(), 50_000, clip=0.3)
    assert_stddev(mean, 1.7 * 0.3 / cohort_size)
    assert float(state["clip"]) == 0.3


def test_the_mean_of_a_simulated_cohort_has_the_noise_of_the_large_cohort() -> None:
    privacy = private_algorithm(CentralDP(noise_multiplier=1.7, clipping_norm=0.3, noise_cohort_size=80)).privacy
    mean, _ = privatize(privacy, np.ones(20), os_seed(), 50_000, clip=0.3)
    assert_stddev(mean, 1.7 * 0.3 / 80)


def test_adaptive_clipping_splits_the_noise_between_update_and_count() -> None:
    """z = 2 with 2 sigma_b = 6 leaves (1/4 - 1/36)^(-1/2) = 2.1213 for the update."""
    privacy = private_algorithm(adaptive(clipping_norm=0.3, clipped_count_stddev=3.0)).privacy
    mean, _ = privatize(privacy, np.ones(20), os_seed(), 50_000, clip=0.3)
    assert_stddev(mean, 2.1213203 * 0.3 / 20)
    seed = os_seed()
    clips = [float(privatize(privacy, np.zeros(20), seed + n)[1]["clip"]) for n in range(4000)]
    assert_stddev(-np.log(clips) / 0.2 - (1 - 0.5), 3.0 / 20)  # all 20 of the 20 expected are unclipped


@pytest.mark.slow
def test_a_simulated_cohort_also_scales_the_noise_of_the_count() -> None:
    privacy = private_algorithm(adaptive(clipped_count_stddev=8.0, noise_cohort_size=80)).privacy
    seed = os_seed()
    clips = [float(privatize(privacy, np.zeros(20), seed + n)[1]["clip"]) for n in range(4000)]
    assert_stddev(-np.log(clips) / 0.2 - (1 - 0.5), 8.0 / 80)


@pytest.mark.parametrize(
    ("noise_multiplier", "cohort_size", "update", "count"),
    [(18.67, 100, 21.5582591, 18.67), (1.0, 60, 1.0141851, 3.0), (2.0, 10, 2.3094011, 2.0)],
)
def test_the_noise_of_the_count_is_a_twentieth_of_the_cohort_and_never_below_z(
    noise_multiplier: float, cohort_size: int, update: float, count: float
) -> None:
    """Andrew et al. 2021: (z^-2 - (2 sigma_b)^-2)^(-1/2), computed by hand."""
    privacy = replace(adaptive(), noise_multiplier=noise_multiplier)
    calibrated: Any = private_algorithm(privacy, sampler=PoissonSampler(cohort_size)).privacy
    assert calibrated.noise_split() == pytest.approx((update, count), rel=1e-6)


def test_personal_layers_get_no_noise() -> None:
    mask = torch.arange(1000) % 3 == 0
    result, plan, context = make_result(torch.zeros(1000), np.ones(5))
    for privacy in (
        private_algorithm(CentralDP(noise_multiplier=1.0)).privacy,
        private_algorithm(LocalDP(1.0)).privacy,
    ):
        assert privacy is not None
        mean, _ = privacy.privatize(result, plan, replace(context, personal_mask=mask), privacy.init(), os_seed())
        assert not mean[mask].any()
        assert mean[~mask].all()


def test_a_round_adds_the_noise_of_its_mechanism_and_none_to_personal_layers() -> None:
    algorithm = private_algorithm(
        CentralDP(noise_multiplier=3.0, clipping_norm=0.2),
        client_optimizer=SGD(1e-30),
        personal_layers=MatchingLayers(("1.*",)),
    )
    without_personal_layers = replace(algorithm, personal_layers=None)
    with open_engine("reference") as engine:
        personal, _ = run_round(algorithm, first_state(algorithm), POPULATION, engine, {}, 0)
        noisy, metrics = run_round(without_personal_layers, first_state(algorithm), POPULATION, engine, {}, 0)
    assert not personal.weights.any()
    assert_stddev(noisy.weights, 3.0 * 0.2 / 20)
    assert metrics.clipping_norm == 0.2


def test_the_noise_depends_on_every_bit_of_a_128_bit_seed() -> None:
    """PyTorch's CPU generator uses 32 bits of a seed, so an attacker could try all of them."""
    zeros = torch.zeros(8)
    assert torch.equal(GaussianSource(5).sample_like(zeros), GaussianSource(5).sample_like(zeros))
    for bit in (31, 32, 63, 64, 127):
        assert not torch.equal(GaussianSource(5).sample_like(zeros), GaussianSource(5 + 2**bit).sample_like(zeros))


def test_local_noise_is_added_by_every_client_also_by_rejected_ones() -> None:
    privacy = private_algorithm(LocalDP(2.0, clipping_norm=0.3)).privacy
    for accepted in (np.ones(16, bool), np.arange(16) < 3):
        mean, _ = privatize(privacy, np.ones(16), os_seed(), 50_000, accepted=accepted)
        assert_stddev(mean, 2.0 * 0.3 / math.sqrt(16))


def test_local_epsilon_is_that_of_the_client_that_took_part_most_often() -> None:
    """Client 1 takes part three times: three releases at sensitivity 2 C are one Gaussian of deviation z / 2 / sqrt(3)."""
    privacy = replace(LocalDP(20.0), delta=1e-5)
    cohorts: tuple[list[int], ...] = ([0, 1], [1, 4], [], [1, 0])
    state = privacy.init()
    for client_ids in cohorts:
        result, plan, context = make_result(torch.zeros(1), np.ones(len(client_ids)))
        clients = tuple(replace(client, client_id=k) for client, k in zip(plan.clients, client_ids, strict=True))
        _, state = privacy.privatize(result, replace(plan, clients=clients), context, state, 0)
    assert state["times"].tolist() == [2, 3, 0, 0, 1]
    spent = privacy.epsilon_spent(len(cohorts), state)
    exact = gaussian_delta(20 / 2 / math.sqrt(3), spent)
    assert exact <= 1e-5  # never less than was spent, and not much more
    assert gaussian_delta(20 / 2 / math.sqrt(3), 0.8 * spent) > 1e-5
    assert privacy.epsilon_spent(0, privacy.init()) == 0
    assert privacy.max_rounds(7) == 7
