"""Private rounds: who takes part, what is told of them, what is refused, and the settings that make them."""

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
    ImportanceReweighting,
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
from manyeyes.core.state import init_state
from manyeyes.privacy.mechanisms import AdaptiveClip, CentralDP, Clip, LocalDP
from tests.privacy.private_sums import ENGINES, FALSE_ALARM, FEDAVG, POPULATION, USERS, ready, settled


def test_poisson_cohorts_vary_as_coins_do() -> None:
    """Mean and variance of their sizes, and options often each user and each pair of users come (false alarm 1e-6)."""
    rounds, q = 4000, 0.2
    chosen = [PoissonSampler(20).sample(POPULATION, make_rng(0, "cohort", round)) for round in range(rounds)]
    sizes = np.array([len(users) for users in chosen])
    assert all(len(set(users.tolist())) == len(users) for users in chosen)
    spread = norm.ppf(1 - FALSE_ALARM / 2)
    assert abs(sizes.mean() - 20) < spread * math.sqrt(USERS * q * (1 - q) / rounds)
    assert abs(sizes.var() / (USERS * q * (1 - q)) - 1) < spread * math.sqrt(2 / rounds)
    came = np.zeros((rounds, USERS))
    for round, users in enumerate(chosen):
        came[round, users] = 1
    squares = ((came.sum(0) - rounds * q) ** 2 / (rounds * q * (1 - q))).sum()
    assert chi2.ppf(FALSE_ALARM / 2, USERS) < squares < chi2.ppf(1 - FALSE_ALARM / 2, USERS)
    together = (came.T @ came)[np.triu_indices(USERS, 1)].mean()
    assert together == pytest.approx(rounds * q**2, rel=0.02)


@pytest.mark.parametrize("name", ENGINES)
def test_a_round_in_which_nobody_takes_part_is_noise(name: str) -> None:
    privacy = CentralDP(noise_multiplier=1.0, clipping_norm=0.3, target_quantile=0.5)
    algorithm = settled(privacy, cohort=PoissonSampler(1))
    with ready(name) as engine:
        state, reports = init_state(algorithm, torch.zeros(6 * USERS), 6 * USERS), []
        for _ in range(8):
            before, (state, metrics) = state, run_round(algorithm, state, POPULATION, engine, {}, 0)
            reports.append(metrics)
            assert not torch.equal(before.weights, state.weights)
    sizes = [metrics.num_clients for metrics in reports]
    assert 0 in sizes
    spent: list[Any] = [metrics.epsilon for metrics in reports]
    assert spent == sorted(set(spent))
    empty = reports[sizes.index(0)]
    assert (empty.images, empty.batches, empty.rejected_clients) == (0, 0, ())


@pytest.mark.parametrize("weigh", [WeightUniformly(), WeightByExamples(), FedNovaWeighting()])
@pytest.mark.parametrize("correct", [None, ScaffoldCorrection()])
def test_an_open_round_in_which_nobody_takes_part_changes_nothing(weigh: Any, correct: Any) -> None:
    algorithm = replace(FEDAVG, client_weighting=weigh, correction=correct)
    with ready("reference") as engine:
        begun = init_state(algorithm, torch.ones(6 * USERS), 6 * USERS)
        state, metrics = run_round(algorithm, begun, POPULATION, engine, {}, 0, plan=RoundPlan(0, 0, ()))
    assert torch.equal(state.weights, begun.weights)
    assert (metrics.num_clients, metrics.max_client_batches) == (0, 0)


def test_no_statistic_is_that_of_one_client() -> None:
    """A cohort of one is told without loss and length; `batches` is that of the mean client, not of the largest."""
    algorithm = settled(CentralDP(noise_multiplier=1.0), cohort=UniformSampler(1))
    population = settled(CentralDP(noise_multiplier=1.0), cohort=AllClients(), draw=EpochBatching(1, 1))
    with ready("reference") as engine:
        _, alone = run_round(algorithm, init_state(algorithm, torch.zeros(600), 600), POPULATION, engine, {}, 0)
        _, many = run_round(population, init_state(population, torch.zeros(600), 600), POPULATION, engine, {}, 0)
        _, open_ = run_round(
            replace(population, privacy=None), init_state(FEDAVG, torch.zeros(600), 600), POPULATION, engine, {}, 0
        )
    assert math.isnan(alone.loss)
    assert math.isnan(alone.update_norm)
    assert math.isfinite(many.loss)
    assert (many.max_client_batches, open_.max_client_batches) == (math.ceil(len(POPULATION) / USERS), 3)
    assert (open_.epsilon, open_.clipping_norm) == (None, None)


WANTED: dict[str, tuple[Callable[[], Algorithm], str]] = {
    "weights": (lambda: fedavg(cohort_size=5), "private sums count every client alike: set weigh to equally"),
    "by size": (
        lambda: replace(FEDAVG, sampler=SizeWeightedSampler(5)),
        "no account is known for clients drawn as by BySize",
    ),
    "pooled": (lambda: replace(FEDAVG, sampler=Centralized()), "no account is known for clients drawn as by Pooled"),
    "scaffold": (
        lambda: replace(scaffold(), client_weighting=WeightUniformly()),
        "ScaffoldCorrection has clients metrics more than",
    ),
    "mimelite": (
        lambda: replace(mimelite(), client_weighting=WeightUniformly()),
        "ServerMomentum has clients metrics more than",
    ),
    "fedir": (
        lambda: replace(fedir(), client_weighting=WeightUniformly()),
        "FedIR would read p.y. off all users: give the target",
    ),
}


@pytest.mark.parametrize("name", WANTED)
def test_what_would_tell_more_than_a_bounded_update_is_refused(name: str) -> None:
    make, sentence = WANTED[name]
    with pytest.raises(ValueError, match=sentence):
        replace(make(), privacy=CentralDP()).validate(POPULATION)


@pytest.mark.parametrize("cohort", [SizeWeightedSampler(5), Centralized()])
def test_local_noise_wants_clients_that_are_chosen_without_a_look_at_them(cohort: Any) -> None:
    with pytest.raises(ValueError, match="looks at what clients hold before they add noise: select uniform"):
        replace(FEDAVG, sampler=cohort, privacy=LocalDP()).validate(POPULATION)


def test_a_target_makes_fedir_private() -> None:
    replace(
        fedir(),
        client_weighting=WeightUniformly(),
        example_weighting=ImportanceReweighting((0.5, 0.5)),
        privacy=CentralDP(),
    ).validate(POPULATION)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CentralDP(epsilon=0), "private training needs a budget or a noise"),
        (lambda: CentralDP(epsilon=-1), "epsilon is -1: it must be a number of at least 0"),
        (lambda: CentralDP(noise_cohort_size=-5), "noise_cohort is -5: it must be a whole number of at least 0"),
        (lambda: CentralDP(delta=1), "delta is 1: it must be above 0 and below 1"),
        (lambda: LocalDP(delta=1), "delta is 1: it must be above 0 and below 1"),
        (lambda: Clip(0), "clip is 0: it must be a number above 0"),
        (lambda: AdaptiveClip(target_quantile=0), "quantile is 0: it must be a number above 0"),
        (lambda: AdaptiveClip(target_quantile=1), "quantile is 1: it must be at least 0 and below 1"),
        (lambda: LocalDP(0), "noise is 0: it must be a number above 0"),
        (
            lambda: settled(
                CentralDP(noise_multiplier=9.0, clipped_count_stddev=4.0, clipping_norm=0.1, target_quantile=0.5)
            ),
            "leaves nothing for the update",
        ),
        (
            lambda: settled(CentralDP(noise_cohort_size=10)),
            "noise_cohort is 10: it must be at least the cohort that trains",
        ),
        (lambda: settled(CentralDP(accountant="guess")), "accountant 'guess' is unknown: choose rdp, pld"),
    ],
)
def test_a_number_without_a_meaning_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("cohort", "many", "sentence"),
    [
        (PoissonSampler(5), 101, "noise_cohort is 101: there are 100 users"),
        (AllClients(), 100, "and all_clients does: set it to 0"),
    ],
)
def test_a_simulated_cohort_that_cannot_be_is_refused(cohort: Any, many: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(FEDAVG, sampler=cohort, privacy=CentralDP(noise_cohort_size=many)).validate(POPULATION)


def test_settings_become_the_parts_that_they_name() -> None:
    presets = {name: build("privacy", {"name": name}) for name in ("central", "local", "flair")}
    assert presets["central"] == CentralDP(epsilon=2.0, clipping_norm=1.0)
    assert presets["local"] == LocalDP(noise_multiplier=1.0, clipping_norm=1.0)
    flair = presets["flair"]
    assert flair == CentralDP(
        epsilon=2.0, clipping_norm=0.1, target_quantile=0.1, clip_learning_rate=0.2, noise_cohort_size=5000
    )


def test_flairs_settings_give_flairs_noise() -> None:
    """FACTS: 41,131 users, 5,000 rounds, epsilon 2: z 18.67 for 5,000 clients, and delta 8.40e-6."""
    users = 41131
    population = Population.from_arrays(
        np.zeros((users, 1, 1, 3), np.uint8), SingleLabels(np.zeros(users, np.int64), ("any",)), np.arange(users)
    )
    flair = build("privacy", {"name": "flair"})
    done = flair.calibrate(replace(FEDAVG, sampler=PoissonSampler(200)), population, 5000)
    assert isinstance(done, CentralDP)
    assert (done.noise_multiplier, done.delta) == pytest.approx((18.67, 8.40e-6), rel=1e-3)
    assert done.max_rounds(5000) == 5000
    assert done.max_rounds(6000) == 5000
    assert (
        "is what training with 5,000 would promise. This training itself, with 200, spends epsilon 4.3"
        in done.describe()
    )
