"""Epsilon against other accountants, closed forms and integrals; and what must hold of any accountant."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from manyeyes.privacy.accountant import EpsilonCurve, PrivacyAccountant, update_noise
from tests.components.gaussian import gaussian_delta

FLAIR, DELTA = 41131, 41131**-1.1


def subsampled_renyi(q: float, z: float, order: float) -> float:
    """D((1-q) N(0, z^2) + q N(1, z^2) || N(0, z^2)), which Poisson sampling comes down to, integrated numerically."""
    x = np.linspace(-40 * z, 1 + 40 * z + order, 40_001)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z**2))
    return float(logsumexp(order * log_ratio + norm.logpdf(x, 0, z), b=x[1] - x[0]) / (order - 1))


def delta_of_pair(log_p: Any, log_q: Any, x: Any, rounds: int, epsilon: float) -> float:
    """The hockey-stick divergence of `rounds` draws of P from those of Q, by convolving the losses on a grid."""
    step, size = 2e-3, 2**14
    loss, mass = log_p - log_q, np.exp(log_p) * (x[1] - x[0])
    grid = np.zeros(size)
    np.add.at(grid, np.round(loss / step).astype(int) % size, mass)
    grid = np.fft.irfft(np.fft.rfft(grid) ** rounds, size)
    losses = step * np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size)
    above = losses > epsilon
    return float((grid[above] * -np.expm1(epsilon - losses[above])).sum())


@pytest.mark.parametrize(("cohort", "noise", "rounds"), [(5000, 18.67, 5000), (200, 1.025, 5000), (200, 0.8, 100)])
def test_pld_is_within_a_percent_of_the_prv_accountant(cohort: int, noise: float, rounds: int) -> None:
    """Gopi, Lee and Wutschitz 2021, their code: another discretisation, another truncation, other bounds."""
    theirs = pytest.importorskip("prv_accountant", reason="the other accountant is not installed: see the dev extra")
    prv = theirs.PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=cohort / FLAIR)
    other = theirs.PRVAccountant(prvs=[prv], max_self_compositions=[rounds], eps_error=0.02, delta_error=1e-10)
    least, estimate, most = other.compute_epsilon(DELTA, [rounds])
    ours = PrivacyAccountant(FLAIR, cohort, rounds, noise, accountant="pld").epsilon(DELTA)
    assert least < ours < most
    assert ours == pytest.approx(estimate, rel=0.01)


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.01, 0.8), (0.5, 4.0)])
def test_rdp_is_the_least_over_orders_of_integrated_divergences(q: float, z: float) -> None:
    rounds, delta = 50, 1e-5
    orders = np.arange(1.5, 40, 0.5)
    renyi = rounds * np.array([subsampled_renyi(q, z, order) for order in orders])
    # Canonne, Kamath and Steinke 2020, proposition 12
    expected = (renyi + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
    assert PrivacyAccountant(1000, int(1000 * q), rounds, z).epsilon(delta) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_without_sampling_it_is_one_gaussian_release(accountant: str, epsilon: float) -> None:
    account = PrivacyAccountant(100, 100, 16, 10.0, "none", accountant)
    exact = gaussian_delta(10 / math.sqrt(16), epsilon)
    actual = account.delta(epsilon)
    assert exact <= actual * (1 + 1e-6)
    if accountant == "pld":
        assert actual == pytest.approx(exact, rel=0.01)


def test_poisson_with_everyone_is_no_sampling() -> None:
    assert PrivacyAccountant(100, 100, 20, 5.0).epsilon(1e-5) == PrivacyAccountant(100, 100, 20, 5.0, "none").epsilon(
        1e-5
    )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_brute_force_convolution_finds_no_more_than_poisson_promises(accountant: str) -> None:
    q, z, rounds, delta = 0.2, 2.0, 30, 1e-4
    x = np.linspace(-30, 31, 200_001)
    base, moved = norm.logpdf(x, 0, z), norm.logpdf(x, 1, z)
    mixed = np.logaddexp(math.log1p(-q) + base, math.log(q) + moved)
    epsilon = PrivacyAccountant(100, 20, rounds, z, accountant=accountant).epsilon(delta)
    actual = max(delta_of_pair(mixed, base, x, rounds, epsilon), delta_of_pair(base, mixed, x, rounds, epsilon))
    assert actual <= delta * 1.01
    if accountant == "pld":
        assert actual == pytest.approx(delta, rel=0.05)


def test_a_fixed_cohort_of_everyone_moves_by_two_clips_when_one_is_replaced() -> None:
    """The trap: dp-accounting wants the noise over the sensitivity, which is 2 C here and not C."""
    rounds, z, delta = 16, 20.0, 1e-5
    epsilon = PrivacyAccountant(50, 50, rounds, z, "fixed").epsilon(delta)
    exact = gaussian_delta(z / 2 / math.sqrt(rounds), epsilon)
    assert exact <= delta
    assert exact > delta / 30  # and not wildly more than needed


@pytest.mark.parametrize("q", [0.05, 0.3, 0.9])
def test_two_populations_that_differ_in_one_replaced_user_stay_within_what_fixed_promises(q: float) -> None:
    """All others send 0, and one user C or -C: two mixtures, and the worst that is known of them."""
    rounds, z, delta = 30, 4.0, 1e-4
    x = np.linspace(-60, 60, 200_001)
    base = math.log1p(-q) + norm.logpdf(x, 0, z)
    plus, minus = (np.logaddexp(base, math.log(q) + norm.logpdf(x, side, z)) for side in (1, -1))
    epsilon = PrivacyAccountant(1000, int(1000 * q), rounds, z, "fixed").epsilon(delta)
    assert delta_of_pair(plus, minus, x, rounds, epsilon) <= delta


def test_a_fixed_cohort_is_never_worse_than_a_known_one() -> None:
    all_clients = PrivacyAccountant(100, 100, 50, 30.0, "fixed")
    assert replace(all_clients, sampler=95).epsilon(1e-5) <= all_clients.epsilon(1e-5)


def test_a_fixed_cohort_promises_more_to_be_replaced_than_poisson_to_leave() -> None:
    assert PrivacyAccountant(FLAIR, 200, 500, 2.0, "fixed").epsilon(DELTA) > PrivacyAccountant(
        FLAIR, 200, 500, 2.0
    ).epsilon(DELTA)
    assert PrivacyAccountant(FLAIR, 200, 500, 2.0, "fixed").adjacency == "replace one user"
    assert PrivacyAccountant(FLAIR, 200, 500, 2.0).adjacency == "add or remove one user"


noises, rounds_drawn = st.floats(0.5, 50), st.integers(1, 5000)


@settings(max_examples=15, deadline=None)
@given(noises, rounds_drawn, st.integers(1, 1000), st.sampled_from(["poisson", "fixed"]))
def test_more_noise_spends_less_and_more_rounds_spend_more(z: float, rounds: int, cohort: int, sampling: str) -> None:
    account = PrivacyAccountant(1000, cohort, rounds, z, sampling)
    spent = account.epsilon(1e-5)
    assert replace(account, noise=1.2 * z).epsilon(1e-5) <= spent
    assert replace(account, rounds=2 * rounds).epsilon(1e-5) >= spent
    assert account.epsilon(1e-6) >= spent
    assert account.delta(max(spent, 1e-3)) <= 1.001e-5


@settings(max_examples=10, deadline=None)
@given(noises, rounds_drawn, st.integers(1, 1000))
def test_pld_promises_no_worse_than_rdp(z: float, rounds: int, cohort: int) -> None:
    pld = PrivacyAccountant(1000, cohort, rounds, z, accountant="pld")
    assert pld.epsilon(1e-5) <= 1.02 * replace(pld, accountant="rdp").epsilon(1e-5) + 1e-3


def test_a_hopeless_epsilon_is_told_by_rdp() -> None:
    """Where dp-accounting's losses overflow (actual by the test above)."""
    pld = PrivacyAccountant(1000, 562, 1723, 0.55, accountant="pld")
    assert pld.epsilon(1e-5) == replace(pld, accountant="rdp").epsilon(1e-5) > 300


def test_a_ledger_of_rounds_is_an_accountant_fed_round_by_round() -> None:
    ledger, other = EpsilonCurve(PrivacyAccountant(1000, 50, 12, 1.1), 1e-5), RdpAccountant()
    assert ledger.epsilon_spent(0) == 0
    for done in range(1, 13):
        other.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.1)))
        assert ledger.epsilon_spent(done) == pytest.approx(other.get_epsilon(1e-5), rel=1e-9)
    assert ledger.epsilon_spent(12) == ledger.account.epsilon(1e-5)


@pytest.mark.parametrize(("accountant", "limit"), [("rdp", 0.001), ("pld", 0.2)])
def test_a_ledger_costs_little_a_round(accountant: str, limit: float) -> None:
    ledger = EpsilonCurve(PrivacyAccountant(FLAIR, 200, 5000, 1.025, accountant=accountant), DELTA)
    ledger.epsilon_spent(1)
    started = time.process_time()
    for done in range(10, 20):
        ledger.epsilon_spent(done)
    assert (time.process_time() - started) / 10 < limit


def test_little_noise_is_accounted_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert PrivacyAccountant(100, 10, 100, 0.4).epsilon(1e-5) > 10
    assert not caplog.records


def test_the_noise_of_update_and_count_together_is_the_noise_that_is_accounted() -> None:
    z, count_std = 1.025, 10.0
    split = update_noise(z, count_std)
    # Two releases with sensitivities 1 and 1/2 are one Gaussian release: their inverse squares add up.
    assert split**-2 + (2 * count_std) ** -2 == pytest.approx(z**-2)
    assert split > z


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"users": 0}, "users is 0"),
        ({"cohort": 0}, "cohort is 0"),
        ({"cohort": 101}, "cohort is 101: it can be at most the number of users, 100"),
        ({"rounds": 0}, "rounds is 0"),
        ({"noise": 0.0}, "noise is 0.0: it must be a number above 0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"interval": 0.0}, "interval is 0.0"),
        ({"sampling": "shuffled"}, "sampling 'shuffled' is unknown: choose poisson, fixed, none"),
        ({"accountant": "prv"}, "accountant 'prv' is unknown: choose rdp, pld"),
        ({"sampling": "none"}, "without sampling all 100 users take part, and cohort is 10"),
        ({"sampling": "fixed", "accountant": "pld"}, "accountant pld knows no privacy losses of fixed-size cohorts"),
    ],
)
def test_a_wrong_account_is_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PrivacyAccountant(**{"users": 100, "cohort": 10, "rounds": 5, "noise": 1.0, **wrong})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_wrong_delta_is_one_sentence(delta: float) -> None:
    account = PrivacyAccountant(100, 10, 5, 1.0)
    with pytest.raises(ValueError, match="above 0 and below 1"):
        account.epsilon(delta)
    with pytest.raises(ValueError, match="above 0 and below 1"):
        EpsilonCurve(account, delta)


def test_other_wrong_numbers_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="epsilon is 0"):
        PrivacyAccountant(100, 10, 5, 1.0).delta(0)
    with pytest.raises(ValueError, match="it must be above 2"):
        update_noise(4.0, 2.0)
    with pytest.raises(ValueError, match="rounds is -1"):
        EpsilonCurve(PrivacyAccountant(100, 10, 5, 1.0), 1e-5).epsilon_spent(-1)
