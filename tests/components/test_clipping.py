"""Clipping: no client adds more than the clipping norm, whatever its update, and a norm that follows a quantile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import lognorm

from manyeyes.components import SGD, AllClients
from manyeyes.core.plan import plan_round
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, RoundContext
from manyeyes.core.uplink import l2_norms
from manyeyes.privacy.mechanisms import CentralDP
from tests.privacy.private_runs import (
    ENGINES,
    FEDAVG,
    NUM_USERS,
    NUM_WEIGHTS,
    POPULATION,
    first_state,
    make_result,
    open_engine,
    private_algorithm,
    privatize,
    user_norms,
)

ALL_CLIENTS = replace(FEDAVG, sampler=AllClients())


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_no_client_adds_more_than_the_clipping_norm(name: str) -> None:
    """4,000 updates over four engines, at random rates and norms; the clipped ones have the clipping norm."""
    rng, num_clipped, num_updates = np.random.default_rng(1), 0, 0
    with open_engine(name) as engine:
        for round in range(10):
            lr, norm = 10 ** rng.uniform(-2, 2), float(10 ** rng.uniform(-3, 1))
            plan = plan_round(ALL_CLIENTS, POPULATION, 0, round)
            context = RoundContext(FEDAVG.client_optimizer, lr, None, None, None, norm)
            weights = torch.from_numpy(rng.normal(size=NUM_WEIGHTS).astype(np.float32))
            actual = engine.train(weights, plan, context, {})
            clipped, unclipped = user_norms(actual.update_W).numpy(), np.empty(NUM_USERS)
            unclipped[[client.user for client in plan.clients]] = actual.norm_K
            assert (clipped <= norm * (1 + 1e-6)).all()
            np.testing.assert_allclose(clipped, np.minimum(unclipped, norm), rtol=1e-5, atol=1e-12)
            num_clipped, num_updates = num_clipped + int((unclipped > norm).sum()), num_updates + len(clipped)
    assert num_updates == 1000
    assert 0.2 * num_updates < num_clipped < 0.9 * num_updates


@pytest.mark.fast_cases("reference")
@pytest.mark.parametrize("name", ENGINES)
def test_personal_layers_are_neither_measured_nor_sent(name: str) -> None:
    optimizer, mask = SGD(1.0), torch.zeros(NUM_WEIGHTS, dtype=torch.bool)
    mask[: 3 * NUM_USERS] = True  # the weights of one class
    plan = plan_round(replace(ALL_CLIENTS, client_optimizer=optimizer), POPULATION, 0, 0)
    with open_engine(name) as engine:
        unclipped, clipped = (
            engine.train(torch.zeros(NUM_WEIGHTS), plan, RoundContext(optimizer, 1.0, None, None, mask, norm), {})
            for norm in (math.inf, 0.05)
        )
    assert not unclipped.update_W[mask].any()
    assert not clipped.update_W[mask].any()
    order = [client.user for client in plan.clients]
    np.testing.assert_allclose(unclipped.norm_K, user_norms(unclipped.update_W)[order], rtol=1e-5)
    torch.testing.assert_close(user_norms(clipped.update_W), user_norms(unclipped.update_W).clamp_max(0.05))


@pytest.mark.slow
def test_the_norm_of_a_large_update_is_not_underestimated() -> None:
    """PyTorch's own norm of 11 million values is 4e-4 too small on a CPU, so a clip would let too much through."""
    vectors = torch.randn(2, 11_000_000)
    exact = np.linalg.norm(vectors.numpy().astype(np.float64), axis=1)
    np.testing.assert_allclose(l2_norms(vectors), exact, rtol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_a_client_with_a_non_finite_update_adds_nothing(name: str) -> None:
    user = int(POPULATION.owners([POPULATION.pixels(np.arange(len(POPULATION))).sum((1, 2, 3)).argmax()])[0])
    weights = torch.zeros(2, 3, NUM_USERS)
    weights[0, :, user], weights[1, :, user] = (
        3e38,
        -3e38,
    )  # overflows for this user; the images of others are black there
    optimizer, plan = SGD(0.1), plan_round(ALL_CLIENTS, POPULATION, 0, 0)
    with open_engine(name) as engine:
        actual = engine.train(weights.flatten(), plan, RoundContext(optimizer, 0.1, None, None, None, 1e-3), {})
    accepted = zip(plan.clients, actual.accepted_K, strict=True)
    assert [client.user for client, is_accepted in accepted if not is_accepted] == [user]
    norms = user_norms(actual.update_W)
    assert norms[user] == 0
    assert (norms > 0).sum() == NUM_USERS - 1


def test_a_private_round_without_finite_updates_continues_with_noise() -> None:
    """Stopping would reveal that all clients of the round had such an update."""
    privacy = CentralDP(noise_multiplier=1.0, clipping_norm=0.5, reproducible_noise=True)
    algorithm = private_algorithm(privacy, sampler=AllClients(), client_optimizer=SGD(1e38))
    with open_engine("reference") as engine:
        begin = replace(first_state(algorithm), weights=torch.randn(NUM_WEIGHTS) * 1e3)
        state, metrics = run_round(algorithm, begin, POPULATION, engine, {}, 0)
    assert set(metrics.rejected_clients) == {"(private)"}
    assert math.isnan(metrics.train_loss) == (len(metrics.rejected_clients) > NUM_USERS - 2)
    assert torch.isfinite(state.weights).all()


def test_the_unclipped_fraction_equals_a_hand_computation() -> None:
    """b = (unclipped - n/2) / K + 1/2 plus noise, which is the same for the same seed and cancels in a ratio."""
    privacy = private_algorithm(
        CentralDP(
            noise_multiplier=1.0,
            clipping_norm=1.0,
            target_quantile=0.5,
            clip_learning_rate=0.2,
            clipped_count_stddev=1.0,
        )
    ).privacy

    def clip_after(norms: Any, accepted: Any = None) -> float:
        return float(privatize(privacy, norms, 3, accepted=accepted)[1]["clip"])

    four_unclipped = clip_after([0.5, 1.0, 0.9, 0.1])  # a norm of 1 is within 1
    assert clip_after([0.5, 1.1, 0.9, 7.0]) / four_unclipped == pytest.approx(math.exp(0.2 * 2 / 20))
    # Without clients the fraction is 1/2; one client with a clipped update moves it by -1/2 / K.
    assert clip_after([]) / clip_after([9.0]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    assert clip_after([0.1]) / clip_after([]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    # A rejected client counts as clipped, whatever its norm is.
    with_rejected = clip_after([0.5, math.nan], [True, False])
    assert with_rejected == clip_after([0.5, 0.5], [True, False]) == clip_after([0.5, 9.0])


@pytest.mark.fast_cases("10.0-0.5")
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("first", [0.1, 10.0])
def test_the_clipping_norm_converges_to_the_quantile_of_known_norms(quantile: float, first: float) -> None:
    """Norms are log-normal with median 2 and shape 0.8; at the end, C is between the quantiles 0.08 away."""
    norms, rng = lognorm(0.8, scale=2.0), np.random.default_rng(4)
    privacy = CentralDP(
        noise_multiplier=1.0, clipping_norm=first, target_quantile=quantile, clip_learning_rate=0.2
    ).calibrate(ALL_CLIENTS, POPULATION, 300)
    state, last_clips = privacy.init(), []
    for round in range(300):
        result = make_result(torch.zeros(1), norms.rvs(NUM_USERS, random_state=rng))
        _, state = privacy.privatize(*result, state, 1000 + round)
        last_clips += [float(state["clip"])] if round >= 200 else []
    actual = math.exp(np.log(last_clips).mean())
    assert norms.ppf(max(quantile - 0.08, 0.02)) < actual < norms.ppf(min(quantile + 0.08, 0.98))


@pytest.mark.parametrize("unclipped_fraction", [-1e5, 1e5])
def test_a_clipping_norm_outside_float32_ends_the_run(unclipped_fraction: float) -> None:
    with pytest.raises(DivergenceError, match="the clipping norm has left the range of float32"):
        CentralDP(target_quantile=0.5).next_clipping_norm(1.0, unclipped_fraction)
