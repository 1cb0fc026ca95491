"""Private rounds: who takes part, what is reported of them, what is refused, and the settings that build mechanisms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from manyeyes.algorithms import fedavg, fedir, mimelite, scaffold
from manyeyes.components import (
    AllClients,
    Centralized,
    EpochBatching,
    FedNovaWeighting,
    PoissonSampler,
    ScaffoldCorrection,
    SizeWeightedSampler,
    UniformSampler,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.registry import build
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.privacy.mechanisms import CentralDP, LocalDP
from tests.privacy.private_runs import (
    ENGINES,
    FALSE_ALARM_RATE,
    FEDAVG,
    NUM_USERS,
    POPULATION,
    first_state,
    open_engine,
    private_algorithm,
)


def test_poisson_cohorts_have_binomial_sizes() -> None:
    """Mean and variance of the sizes, and how often each user and each pair of users is sampled."""
    rounds, q = 4000, 0.2
    cohorts = [PoissonSampler(20).sample(POPULATION, make_rng(0, "cohort", round)) for round in range(rounds)]
    sizes = np.array([len(users) for users in cohorts])
    assert all(len(set(users.tolist())) == len(users) for users in cohorts)
    z = norm.ppf(1 - FALSE_ALARM_RATE / 2)
    assert abs(sizes.mean() - 20) < z * math.sqrt(NUM_USERS * q * (1 - q) / rounds)
    assert abs(sizes.var() / (NUM_USERS * q * (1 - q)) - 1) < z * math.sqrt(2 / rounds)
    is_sampled = np.zeros((rounds, NUM_USERS))
    for round, users in enumerate(cohorts):
        is_sampled[round, users] = 1
    squares = ((is_sampled.sum(0) - rounds * q) ** 2 / (rounds * q * (1 - q))).sum()
    assert chi2.ppf(FALSE_ALARM_RATE / 2, NUM_USERS) < squares < chi2.ppf(1 - FALSE_ALARM_RATE / 2, NUM_USERS)
    pairs = (is_sampled.T @ is_sampled)[np.triu_indices(NUM_USERS, 1)].mean()
    assert pairs == pytest.approx(rounds * q**2, rel=0.02)


@pytest.mark.parametrize("name", ENGINES)
def test_a_private_round_without_clients_is_noise(name: str) -> None:
    privacy = CentralDP(noise_multiplier=1.0, clipping_norm=0.3, target_quantile=0.5)
    algorithm = private_algorithm(privacy, sampler=PoissonSampler(1))
    with open_engine(name) as engine:
        state, rounds = first_state(algorithm), []
        for _ in range(8):
            before, (state, metrics) = state, run_round(algorithm, state, POPULATION, engine, {}, 0)
            rounds.append(metrics)
            assert not torch.equal(before.weights, state.weights)
    sizes = [metrics.num_clients for metrics in rounds]
    assert 0 in sizes
    spent: list[Any] = [metrics.epsilon for metrics in rounds]
    assert spent == sorted(set(spent))
    empty = rounds[sizes.index(0)]
    assert (empty.num_images, empty.max_client_batches, empty.rejected_clients) == (0, 0, ())


@pytest.mark.parametrize("weighting", [WeightUniformly(), WeightByExamples(), FedNovaWeighting()])
@pytest.mark.parametrize("correction", [None, ScaffoldCorrection()])
def test_a_round_without_clients_and_privacy_changes_nothing(weighting: Any, correction: Any) -> None:
    algorithm = replace(FEDAVG, client_weighting=weighting, correction=correction)
    with open_engine("reference") as engine:
        begin = first_state(algorithm, 1.0)
        state, metrics = run_round(algorithm, begin, POPULATION, engine, {}, 0, plan=RoundPlan(0, 0, ()))
    assert torch.equal(state.weights, begin.weights)
    assert (metrics.num_clients, metrics.max_client_batches) == (0, 0)


def test_no_metric_is_that_of_a_single_client() -> None:
    """A cohort of one has no loss and norm; `max_client_batches` is that of the mean client, not of the largest."""
    one_client = private_algorithm(CentralDP(noise_multiplier=1.0), sampler=UniformSampler(1))
    all_clients = private_algorithm(CentralDP(noise_multiplier=1.0), sampler=AllClients(), batching=EpochBatching(1, 1))
    public = replace(all_clients, privacy=None)
    with open_engine("reference") as engine:
        metrics_of_one, metrics_of_all, public_metrics = (
            run_round(algorithm, first_state(algorithm), POPULATION, engine, {}, 0)[1]
            for algorithm in (one_client, all_clients, public)
        )
    assert math.isnan(metrics_of_one.train_loss)
    assert math.isnan(metrics_of_one.update_norm)
    assert math.isfinite(metrics_of_all.train_loss)
    assert metrics_of_all.max_client_batches == math.ceil(len(POPULATION) / NUM_USERS)
    assert public_metrics.max_client_batches == 3
    assert (public_metrics.epsilon, public_metrics.clipping_norm) == (None, None)


REFUSED: dict[str, tuple[Callable[[], Algorithm], str]] = {
    "weights": (
        lambda: fedavg(cohort_size=5),
        "privacy=central needs uniform client weights: set client_weighting=uniform",
    ),
    "size-weighted": (
        lambda: replace(FEDAVG, sampler=SizeWeightedSampler(5)),
        "privacy=central has no accounting for sampler=SizeWeightedSampler: set sampler=poisson, uniform or all",
    ),
    "centralized": (
        lambda: replace(FEDAVG, sampler=Centralized()),
        "privacy=central has no accounting for sampler=Centralized",
    ),
    "scaffold": (
        lambda: replace(scaffold(), client_weighting=WeightUniformly()),
        "privacy=central protects only the update, and correction=ScaffoldCorrection uploads more: choose algorithm=fedavg, fedprox",
    ),
    "mimelite": (
        lambda: replace(mimelite(), client_weighting=WeightUniformly()),
        "privacy=central protects only the update, and correction=MimeLiteMomentum uploads more: choose algorithm=fedavg, fedprox",
    ),
    "fedir": (
        lambda: replace(fedir(), client_weighting=WeightUniformly()),
        "users' labels for the p.y. of example_weighting=importance: set example_weighting.target to uniform or to numbers",
    ),
    "fedir of another split": (
        lambda: replace(fedir(target="val"), client_weighting=WeightUniformly()),
        "privacy=central must not read users' labels for the p.y. of example_weighting=importance",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_components_that_reveal_more_than_a_clipped_update_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        replace(make(), privacy=CentralDP()).validate(POPULATION)


@pytest.mark.parametrize("sampler", [SizeWeightedSampler(5), Centralized()])
def test_local_privacy_refuses_samplers_that_read_clients_data(sampler: Any) -> None:
    name = type(sampler).__name__
    with pytest.raises(ValueError, match=f"noise after sampler={name} has read what clients hold: set sampler=uniform"):
        replace(FEDAVG, sampler=sampler, privacy=LocalDP()).validate(POPULATION)


@pytest.mark.parametrize("target", ["uniform", (0.5, 0.5)])
def test_a_target_that_no_user_has_a_part_in_makes_fedir_private(target: Any) -> None:
    replace(fedir(target=target), client_weighting=WeightUniformly(), privacy=CentralDP()).validate(POPULATION)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CentralDP(epsilon=0), "privacy needs a budget or noise: set privacy.epsilon, privacy.noise_mult"),
        (lambda: CentralDP(epsilon=-1), r"privacy\.epsilon is -1: set it to a number of at least 0"),
        (lambda: CentralDP(noise_cohort_size=-5), r"privacy\.noise_cohort_size is -5: set it to a whole number"),
        (lambda: CentralDP(delta=1), r"privacy\.delta is 1: set it to a number of at least 0 and below 1"),
        (lambda: LocalDP(delta=1), r"privacy\.delta is 1: set it to a number of at least 0 and below 1"),
        (lambda: CentralDP(clipping_norm=0), r"privacy\.clipping_norm is 0: set it to a number above 0"),
        (lambda: LocalDP(clipping_norm=-1), r"privacy\.clipping_norm is -1: set it to a number above 0"),
        (lambda: CentralDP(target_quantile=-1), r"privacy\.target_quantile is -1: set it to a number of at least 0"),
        (lambda: CentralDP(target_quantile=1), r"privacy\.target_quantile is 1: set it to a number .* and below 1"),
        (lambda: LocalDP(0), r"privacy\.noise_multiplier is 0: set it to a number above 0"),
        (
            lambda: private_algorithm(
                CentralDP(noise_multiplier=9.0, clipped_count_stddev=4.0, clipping_norm=0.1, target_quantile=0.5)
            ),
            "leaves nothing for the update",
        ),
        (
            lambda: private_algorithm(CentralDP(noise_cohort_size=10)),
            "noise_cohort_size is 10: set it to a whole number of at least 20",
        ),
        (lambda: CentralDP(accountant="guess"), r"privacy\.accountant is 'guess': set it to rdp or pld"),
    ],
)
def test_an_invalid_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("sampler", "noise_cohort_size", "message"),
    [
        (PoissonSampler(5), 101, r"privacy\.noise_cohort_size=101 is more than the 100 users of the data"),
        (AllClients(), 100, "needs a cohort, and sampler=all has none: set it to 0"),
    ],
)
def test_an_impossible_simulated_cohort_is_refused(sampler: Any, noise_cohort_size: int, message: str) -> None:
    privacy = CentralDP(noise_cohort_size=noise_cohort_size)
    with pytest.raises(ValueError, match=message):
        replace(FEDAVG, sampler=sampler, privacy=privacy).validate(POPULATION)


def test_settings_build_the_mechanisms_that_they_name() -> None:
    presets = {name: build("privacy", {"name": name}) for name in ("central", "local", "flair")}
    assert presets["central"] == CentralDP(epsilon=2.0, clipping_norm=1.0)
    assert presets["local"] == LocalDP(noise_multiplier=1.0, clipping_norm=1.0)
    flair = presets["flair"]
    assert flair == CentralDP(
        epsilon=2.0, clipping_norm=0.1, target_quantile=0.1, clip_learning_rate=0.2, noise_cohort_size=5000
    )


def test_the_flair_preset_gives_flairs_noise() -> None:
    """41,131 users, 5,000 rounds, epsilon 2: z 18.67 for 5,000 clients, and delta 8.40e-6."""
    num_users = 41131
    population = Population.from_arrays(
        np.zeros((num_users, 1, 1, 3), np.uint8),
        SingleLabels(np.zeros(num_users, np.int64), ("any",)),
        np.arange(num_users),
    )
    flair = build("privacy", {"name": "flair"})
    calibrated = flair.calibrate(replace(FEDAVG, sampler=PoissonSampler(200)), population, 5000)
    assert isinstance(calibrated, CentralDP)
    assert (calibrated.noise_multiplier, calibrated.delta) == pytest.approx((18.67, 8.40e-6), rel=1e-3)
    assert calibrated.max_rounds(5000) == 5000
    assert calibrated.max_rounds(6000) == 5000
    assert "training with 5,000 would have (2, 8.4e-06)-differential privacy" in calibrated.describe()
    assert "This training, with 200, spends epsilon 4.3" in calibrated.describe()
