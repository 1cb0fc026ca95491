"""Bounds of private sums: no client adds more, whatever its update, and a bound that follows its quantile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import lognorm

from manyeyes.components import SGD, AllClients
from manyeyes.components.numerics import l2_norms
from manyeyes.core.plan import plan_round
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, RoundContext, init_state
from manyeyes.privacy.mechanisms import AdaptiveClip, CentralDP
from tests.privacy.private_sums import ENGINES, FEDAVG, POPULATION, USERS, protect, ready, result_of, settled, shares


@pytest.mark.parametrize("name", ENGINES)
def test_no_client_adds_more_than_the_bound(name: str) -> None:
    """10,000 updates over four engines, at random rates and bounds; the clipped ones are as long as the bound."""
    rng, clipped, seen = np.random.default_rng(1), 0, 0
    with ready(name) as engine:
        for round in range(25):
            lr, bound = 10 ** rng.uniform(-2, 2), float(10 ** rng.uniform(-3, 1))
            plan = plan_round(replace(FEDAVG, sampler=AllClients()), POPULATION, 0, round)
            weights = torch.from_numpy(rng.normal(size=6 * USERS).astype(np.float32))
            actual = engine.train(weights, plan, RoundContext(FEDAVG.client_optimizer, lr, None, None, None, bound), {})
            sent, whole = shares(actual.update_W).numpy(), np.empty(USERS)
            whole[[client.user for client in plan.clients]] = actual.norm_K
            assert (sent <= bound * (1 + 1e-6)).all()
            np.testing.assert_allclose(sent, np.minimum(whole, bound), rtol=1e-5, atol=1e-12)
            clipped, seen = clipped + int((whole > bound).sum()), seen + len(sent)
    assert seen == 2500
    assert 0.2 * seen < clipped < 0.9 * seen


@pytest.mark.parametrize("name", ENGINES)
def test_what_stays_with_the_client_is_neither_measured_nor_sent(name: str) -> None:
    local, mask = SGD(1.0), torch.zeros(6 * USERS, dtype=torch.bool)
    mask[: 3 * USERS] = True  # the weights of one class
    plan = plan_round(replace(FEDAVG, sampler=AllClients(), client_optimizer=local), POPULATION, 0, 0)
    with ready(name) as engine:
        free = engine.train(torch.zeros(6 * USERS), plan, RoundContext(local, 1.0, None, None, mask), {})
        tight = engine.train(torch.zeros(6 * USERS), plan, RoundContext(local, 1.0, None, None, mask, 0.05), {})
    assert not free.update_W[mask].any()
    assert not tight.update_W[mask].any()
    order = [client.user for client in plan.clients]
    np.testing.assert_allclose(free.norm_K, shares(free.update_W)[order], rtol=1e-5)
    torch.testing.assert_close(shares(tight.update_W), shares(free.update_W).clamp_max(0.05))


def test_a_long_vector_is_not_measured_short() -> None:
    """PyTorch's own norm of so many numbers is 4e-4 too small on a CPU, which a clip would let through."""
    vectors = torch.randn(2, 11_000_000)
    exact = np.linalg.norm(vectors.numpy().astype(np.float64), axis=1)
    np.testing.assert_allclose(l2_norms(vectors), exact, rtol=3e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_a_client_that_is_not_finite_adds_nothing_and_counts_as_one_beyond(name: str) -> None:
    user = int(POPULATION.owners([POPULATION.pixels(np.arange(len(POPULATION))).sum((1, 2, 3)).argmax()])[0])
    weights = torch.zeros(2, 3, USERS)
    weights[0, :, user], weights[1, :, user] = 3e38, -3e38  # overflow, where others see black
    local, plan = SGD(0.1), plan_round(replace(FEDAVG, sampler=AllClients()), POPULATION, 0, 0)
    with ready(name) as engine:
        actual = engine.train(weights.flatten(), plan, RoundContext(local, 0.1, None, None, None, 1e-3), {})
    assert [c.user for c, kept in zip(plan.clients, actual.accepted_K, strict=True) if not kept] == [user]
    sent = shares(actual.update_W)
    assert sent[user] == 0
    assert (sent > 0).sum() == USERS - 1


def test_a_private_round_without_a_finite_update_is_noise_and_goes_on() -> None:
    """To stop would tell that all who took part had such an update."""
    privacy = CentralDP(noise_multiplier=1.0, clipping_norm=0.5, reproducible_noise=True)
    algorithm = settled(privacy, sampler=AllClients(), client_optimizer=SGD(1e38))
    with ready("reference") as engine:
        begun = init_state(algorithm, torch.randn(6 * USERS) * 1e3, 6 * USERS)
        state, metrics = run_round(algorithm, begun, POPULATION, engine, {}, 0)
    assert set(metrics.rejected_clients) == {"(private)"}
    assert math.isnan(metrics.train_loss) == (len(metrics.rejected_clients) > USERS - 2)
    assert torch.isfinite(state.weights).all()


def test_counts_equal_a_hand_computation() -> None:
    """b = (within - n/2) / K + 1/2 plus noise, which is the same for the same secret and cancels in a ratio."""
    privacy = settled(
        CentralDP(
            noise_multiplier=1.0,
            clipping_norm=1.0,
            target_quantile=0.5,
            clip_learning_rate=0.2,
            clipped_count_stddev=1.0,
        )
    ).privacy

    def clip_after(norms: Any, kept: Any = None) -> float:
        return float(protect(privacy, norms, 3, kept=kept)[1]["clip"])

    within_of_four = clip_after([0.5, 1.0, 0.9, 0.1])  # 1 is within 1
    assert clip_after([0.5, 1.1, 0.9, 7.0]) / within_of_four == pytest.approx(math.exp(0.2 * 2 / 20))
    # nobody: as many halves up as down, so a client that comes with a long update moves the share by -1/2 / K
    assert clip_after([]) / clip_after([9.0]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    assert clip_after([0.1]) / clip_after([]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    # a client that is left out counts as one that was beyond, whatever its norm is said to be
    rejected_clients = clip_after([0.5, math.nan], [True, False])
    assert rejected_clients == clip_after([0.5, 0.5], [True, False]) == clip_after([0.5, 9.0])


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("first", [0.1, 10.0])
def test_the_clip_finds_the_quantile_of_known_lengths(quantile: float, first: float) -> None:
    """Lengths are log-normal, of median 2 and shape 0.8; at the end, C is between the quantiles 0.08 away."""
    law, rng = lognorm(0.8, scale=2.0), np.random.default_rng(4)
    algorithm = replace(FEDAVG, sampler=AllClients())
    privacy = CentralDP(
        noise_multiplier=1.0, clipping_norm=first, target_quantile=quantile, clip_learning_rate=0.2
    ).calibrate(algorithm, POPULATION, 300)
    kept, tail = privacy.init(), []
    for round in range(300):
        result = result_of(torch.zeros(1), law.rvs(USERS, random_state=rng))
        _, kept = privacy.privatize(*result, kept, 1000 + round)
        tail += [float(kept["clip"])] if round >= 200 else []
    actual = math.exp(np.log(tail).mean())
    assert law.ppf(max(quantile - 0.08, 0.02)) < actual < law.ppf(min(quantile + 0.08, 0.98))


@pytest.mark.parametrize("share", [-1e5, 1e5])
def test_a_clip_that_much_noise_leads_out_of_the_numbers_ends_the_run_in_a_sentence(share: float) -> None:
    with pytest.raises(DivergenceError, match="the clipping norm has left the range of float32"):
        AdaptiveClip().update(1.0, share)
