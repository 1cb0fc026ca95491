"""Private sums are noisy by exactly as much as is accounted.

Noise comes from the operating system and is tested by chi-square bounds that a right program leaves once in a million.
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
from manyeyes.core.state import init_state
from manyeyes.privacy.gaussian import GaussianSource
from manyeyes.privacy.mechanisms import AdaptiveClip, CentralDP, LocalDP
from tests.components.gaussian import gaussian_delta
from tests.privacy.private_sums import (
    POPULATION,
    USERS,
    assert_deviation,
    os_secret,
    protect,
    ready,
    result_of,
    settled,
)


@pytest.mark.parametrize(
    ("cohort", "many"), [(PoissonSampler(20), 20), (UniformSampler(20), 20), (AllClients(), USERS)]
)
def test_the_sum_carries_z_clips_and_the_mean_that_over_the_expected_cohort(cohort: Any, many: int) -> None:
    privacy = settled(CentralDP(noise_multiplier=1.7, clipping_norm=0.3), cohort=cohort).privacy
    mean, kept = protect(privacy, np.ones(13), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 1.7 * 0.3 / many)
    assert_deviation(mean * many, 1.7 * 0.3)
    assert float(kept["clip"]) == 0.3


def test_a_simulated_cohort_has_the_noise_of_the_large_ones_mean() -> None:
    privacy = settled(CentralDP(noise_multiplier=1.7, clipping_norm=0.3, noise_cohort_size=80)).privacy
    mean, _ = protect(privacy, np.ones(20), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 1.7 * 0.3 / 80)


def test_adaptive_clipping_gives_its_share_of_the_noise_to_the_count() -> None:
    """z = 2 with 2 sigma_b = 6 leaves (1/4 - 1/36)^(-1/2) = 2.1213 for the update."""
    clip = AdaptiveClip(0.3, 0.5, learning_rate=0.2, clipped_count_stddev=3.0)
    privacy = settled(CentralDP(noise_multiplier=2.0, clip=clip)).privacy
    mean, _ = protect(privacy, np.ones(20), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 2.1213203 * 0.3 / 20)
    begin = os_secret()
    clips = [float(protect(privacy, np.zeros(20), begin + n)[1]["clip"]) for n in range(4000)]
    assert_deviation(-np.log(clips) / 0.2 - (1 - 0.5), 3.0 / 20)  # all 20 of the 20 expected are within


def test_a_simulated_cohort_scales_the_noise_of_the_count_too() -> None:
    clip = AdaptiveClip(1.0, 0.5, learning_rate=0.2, clipped_count_stddev=8.0)
    privacy = settled(CentralDP(noise_multiplier=2.0, clip=clip, noise_cohort_size=80)).privacy
    begin = os_secret()
    clips = [float(protect(privacy, np.zeros(20), begin + n)[1]["clip"]) for n in range(4000)]
    assert_deviation(-np.log(clips) / 0.2 - (1 - 0.5), 8.0 / 80)


@pytest.mark.parametrize(
    ("noise", "cohort", "update", "count"),
    [(18.67, 5000, 18.6830292, 250.0), (1.0, 200, 1.0012523, 10.0), (2.0, 10, 2.3094011, 2.0)],
)
def test_the_counts_noise_is_a_twentieth_of_the_cohort_and_never_below_z(
    noise: float, cohort: int, update: float, count: float
) -> None:
    """Andrew et al. 2021: (z^-2 - (2 sigma_b)^-2)^(-1/2), by hand."""
    assert AdaptiveClip().noise_multipliers(noise, cohort) == pytest.approx((update, count), rel=1e-6)


def test_nothing_is_added_to_what_stays_with_the_clients() -> None:
    mask = torch.arange(1000) % 3 == 0
    result, plan, work = result_of(torch.zeros(1000), np.ones(5))
    for privacy in (settled(CentralDP(noise_multiplier=1.0)).privacy, settled(LocalDP(1.0)).privacy):
        assert privacy is not None
        mean, _ = privacy.privatize(result, plan, replace(work, personal_layers=mask), privacy.init(), os_secret())
        assert not mean[mask].any()
        assert mean[~mask].all()


def test_a_played_round_moves_by_its_noise_and_by_no_noise_on_personal_layers() -> None:
    algorithm = settled(
        CentralDP(noise_multiplier=3.0, clipping_norm=0.2), local=SGD(1e-30), personal=MatchingLayers(("1.*",))
    )
    free = replace(algorithm, personal_layers=None)
    with ready("reference") as engine:
        begun = init_state(algorithm, torch.zeros(6 * USERS), 6 * USERS)
        kept_back, _ = run_round(algorithm, begun, POPULATION, engine, {}, 0)
        noisy, metrics = run_round(free, begun, POPULATION, engine, {}, 0)
    assert not kept_back.weights.any()
    assert_deviation(noisy.weights, 3.0 * 0.2 / 20)
    assert metrics.clipping_norm == 0.2


def test_noise_takes_more_of_a_secret_than_pytorchs_cpu_generator_does() -> None:
    """PyTorch keeps 32 bits of a seed: whoever sees a sum could try all noises."""
    like = torch.zeros(8)
    assert torch.equal(GaussianSource(5).sample_like(like), GaussianSource(5).sample_like(like))
    for bit in (31, 32, 63, 64, 127):
        assert not torch.equal(GaussianSource(5).sample_like(like), GaussianSource(5 + 2**bit).sample_like(like))


def test_local_noise_is_that_of_every_client_and_those_left_out_send_noise_too() -> None:
    privacy = settled(LocalDP(2.0, clipping_norm=0.3)).privacy
    for kept in (np.ones(16, bool), np.arange(16) < 3):
        mean, _ = protect(privacy, np.ones(16), os_secret(), 50_000, kept=kept)
        assert_deviation(mean, 2.0 * 0.3 / math.sqrt(16))


def test_the_ledger_of_local_noise_is_that_of_whoever_came_most_often() -> None:
    """Client 1 comes three times: three releases at sensitivity 2 C are one Gaussian of deviation z / 2 / sqrt(3)."""
    privacy = replace(LocalDP(20.0), delta=1e-5)
    cohorts: tuple[list[int], ...] = ([0, 1], [1, 4], [], [1, 0])
    kept = privacy.init()
    for keys in cohorts:
        result, plan, work = result_of(torch.zeros(1), np.ones(len(keys)))
        clients = tuple(replace(client, client_id=key) for client, key in zip(plan.clients, keys, strict=True))
        _, kept = privacy.privatize(result, replace(plan, clients=clients), work, kept, 0)
    assert kept["times"].tolist() == [2, 3, 0, 0, 1]
    spent = privacy.epsilon_spent(len(cohorts), kept)
    exact = gaussian_delta(20 / 2 / math.sqrt(3), spent)
    assert exact <= 1e-5  # never less than what was spent, and with the moments accountant not much more
    assert gaussian_delta(20 / 2 / math.sqrt(3), 0.8 * spent) > 1e-5
    assert privacy.epsilon_spent(0, privacy.init()) == 0
    assert privacy.max_rounds(7) == 7
