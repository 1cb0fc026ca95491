"""Epsilon against other accountants, closed forms and integrals; and what must hold of any accountant."""

from __future__ import annotations

import logging
import math
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

from manyeyes.privacy import accountant as accountant_module
from manyeyes.privacy.accountant import PrivacyAccountant, update_noise
from tests.privacy.private_runs import gaussian_delta

FLAIR_USERS, FLAIR_DELTA = 41131, 41131**-1.1


def subsampled_renyi(q: float, z: float, order: float) -> float:
    """Integrate D((1-q) N(0, z^2) + q N(1, z^2) || N(0, z^2)) numerically, to which Poisson sampling reduces."""
    x = np.linspace(-40 * z, 1 + 40 * z + order, 40_001)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z**2))
    return float(logsumexp(order * log_ratio + norm.logpdf(x, 0, z), b=x[1] - x[0]) / (order - 1))


def delta_of_pair(log_p: Any, log_q: Any, x: Any, rounds: int, epsilon: float) -> float:
    """Return the hockey-stick divergence of `rounds` samples of P from those of Q, by convolving losses on a grid."""
    step, size = 2e-3, 2**14
    loss, mass = log_p - log_q, np.exp(log_p) * (x[1] - x[0])
    grid = np.zeros(size)
    np.add.at(grid, np.round(loss / step).astype(int) % size, mass)
    grid = np.fft.irfft(np.fft.rfft(grid) ** rounds, size)
    losses = step * np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size)
    above = losses > epsilon
    return float((grid[above] * -np.expm1(epsilon - losses[above])).sum())


@pytest.mark.fast_cases("200-0.8-100")
@pytest.mark.parametrize(
    ("cohort_size", "noise", "rounds"),
    [(5000, 18.67, 5000), (200, 1.025, 5000), (200, 0.8, 100)],
)
def test_pld_is_within_a_percent_of_the_prv_accountant(cohort_size: int, noise: float, rounds: int) -> None:
    """The accountant of Gopi, Lee and Wutschitz 2021 discretizes, truncates and bounds in other ways."""
    prv_accountant = pytest.importorskip("prv_accountant", reason="not installed: see the dev extra")
    mechanism = prv_accountant.PoissonSubsampledGaussianMechanism(
        noise_multiplier=noise, sampling_probability=cohort_size / FLAIR_USERS
    )
    other = prv_accountant.PRVAccountant(
        prvs=[mechanism], max_self_compositions=[rounds], eps_error=0.02, delta_error=1e-10
    )
    lower, estimate, upper = other.compute_epsilon(FLAIR_DELTA, [rounds])
    actual = PrivacyAccountant(FLAIR_USERS, cohort_size, rounds, noise, method="pld").epsilon(FLAIR_DELTA)
    assert lower < actual < upper
    assert actual == pytest.approx(estimate, rel=0.01)


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.01, 0.8), (0.5, 4.0)])
def test_rdp_is_the_minimum_over_orders_of_integrated_divergences(q: float, z: float) -> None:
    rounds, delta = 50, 1e-5
    orders = np.arange(1.5, 40, 0.5)
    renyi = rounds * np.array([subsampled_renyi(q, z, order) for order in orders])
    # Canonne, Kamath and Steinke 2020, proposition 12
    expected = (renyi + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
    assert PrivacyAccountant(1000, int(1000 * q), rounds, z).epsilon(delta) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("method", ["rdp", "pld"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_rounds_without_sampling_are_one_gaussian_release(method: str, epsilon: float) -> None:
    accountant = PrivacyAccountant(100, 100, 16, 10.0, "none", method)
    exact = gaussian_delta(10 / math.sqrt(16), epsilon)
    actual = accountant.delta(epsilon)
    assert exact <= actual * (1 + 1e-6)
    if method == "pld":
        assert actual == pytest.approx(exact, rel=0.01)


def test_poisson_with_all_users_equals_no_sampling() -> None:
    poisson, none = PrivacyAccountant(100, 100, 20, 5.0), PrivacyAccountant(100, 100, 20, 5.0, "none")
    assert poisson.epsilon(1e-5) == none.epsilon(1e-5)


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_a_brute_force_convolution_stays_within_the_guarantee_of_poisson(method: str) -> None:
    q, z, rounds, delta = 0.2, 2.0, 30, 1e-4
    x = np.linspace(-30, 31, 200_001)
    base, shifted = norm.logpdf(x, 0, z), norm.logpdf(x, 1, z)
    mixed = np.logaddexp(math.log1p(-q) + base, math.log(q) + shifted)
    epsilon = PrivacyAccountant(100, 20, rounds, z, method=method).epsilon(delta)
    actual = max(delta_of_pair(mixed, base, x, rounds, epsilon), delta_of_pair(base, mixed, x, rounds, epsilon))
    assert actual <= delta * 1.01
    if method == "pld":
        assert actual == pytest.approx(delta, rel=0.05)


def test_replacing_a_user_in_a_fixed_cohort_moves_the_sum_by_two_clipping_norms() -> None:
    """dp-accounting expects the noise over the sensitivity, which is 2 C here and not C."""
    rounds, z, delta = 16, 20.0, 1e-5
    epsilon = PrivacyAccountant(50, 50, rounds, z, "fixed").epsilon(delta)
    exact = gaussian_delta(z / 2 / math.sqrt(rounds), epsilon)
    assert delta / 30 < exact <= delta


@pytest.mark.parametrize("q", [0.05, 0.3, 0.9])
def test_replacing_a_user_stays_within_the_guarantee_of_a_fixed_cohort(q: float) -> None:
    """All others send 0, and one user C or -C: two mixtures, the worst case that is known."""
    rounds, z, delta = 30, 4.0, 1e-4
    x = np.linspace(-60, 60, 200_001)
    base = math.log1p(-q) + norm.logpdf(x, 0, z)
    plus, minus = (np.logaddexp(base, math.log(q) + norm.logpdf(x, side, z)) for side in (1, -1))
    epsilon = PrivacyAccountant(1000, int(1000 * q), rounds, z, "fixed").epsilon(delta)
    assert delta_of_pair(plus, minus, x, rounds, epsilon) <= delta


def test_a_random_fixed_cohort_spends_no_more_than_all_clients() -> None:
    all_clients = PrivacyAccountant(100, 100, 50, 30.0, "fixed")
    assert replace(all_clients, cohort_size=95).epsilon(1e-5) <= all_clients.epsilon(1e-5)


def test_replacing_a_user_costs_more_than_removing_one() -> None:
    fixed, poisson = (PrivacyAccountant(FLAIR_USERS, 200, 500, 2.0, sampling) for sampling in ("fixed", "poisson"))
    assert fixed.epsilon(FLAIR_DELTA) > poisson.epsilon(FLAIR_DELTA)
    assert (fixed.adjacency, poisson.adjacency) == ("replace one user", "add or remove one user")


noise_multipliers, round_counts = st.floats(0.5, 50), st.integers(1, 5000)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(noise_multipliers, round_counts, st.integers(1, 1000), st.sampled_from(["poisson", "fixed"]))
def test_more_noise_spends_less_and_more_rounds_spend_more(z: float, rounds: int, cohort: int, sampling: str) -> None:
    accountant = PrivacyAccountant(1000, cohort, rounds, z, sampling)
    spent = accountant.epsilon(1e-5)
    assert replace(accountant, noise_multiplier=1.2 * z).epsilon(1e-5) <= spent
    assert replace(accountant, rounds=2 * rounds).epsilon(1e-5) >= spent
    assert accountant.epsilon(1e-6) >= spent
    assert accountant.delta(max(spent, 1e-3)) <= 1.001e-5


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(noise_multipliers, round_counts, st.integers(1, 1000))
def test_pld_is_never_worse_than_rdp(z: float, rounds: int, cohort: int) -> None:
    pld = PrivacyAccountant(1000, cohort, rounds, z, method="pld")
    assert pld.epsilon(1e-5) <= 1.02 * replace(pld, method="rdp").epsilon(1e-5) + 1e-3


def test_a_huge_epsilon_is_computed_by_rdp() -> None:
    """Privacy loss distributions of dp-accounting overflow there (an example that the test above once drew)."""
    pld = PrivacyAccountant(1000, 562, 1723, 0.55, method="pld")
    assert pld.epsilon(1e-5) == replace(pld, method="rdp").epsilon(1e-5) > 300


@pytest.mark.slow
def test_epsilon_spent_equals_an_accountant_that_composes_round_by_round() -> None:
    accountant, other = PrivacyAccountant(1000, 50, 12, 1.1), RdpAccountant()
    assert accountant.epsilon_spent(0, 1e-5) == 0
    for rounds in range(1, 13):
        other.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.1)))
        assert accountant.epsilon_spent(rounds, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-9)
    assert accountant.epsilon_spent(12, 1e-5) == accountant.epsilon(1e-5)


@pytest.mark.parametrize(("method", "cache"), [("rdp", "_divergences"), ("pld", "_one_loss")])
def test_the_divergence_of_a_round_is_computed_once_per_run(method: str, cache: str) -> None:
    accountant = PrivacyAccountant(FLAIR_USERS, 200, 5000, 1.03, method=method, interval=0.01)
    accountant.epsilon_spent(1, FLAIR_DELTA)
    before = getattr(accountant_module, cache).cache_info().misses
    accountant.epsilon_spent(2, FLAIR_DELTA)
    assert getattr(accountant_module, cache).cache_info().misses == before


def test_little_noise_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert PrivacyAccountant(100, 10, 100, 0.4).epsilon(1e-5) > 10
    assert not caplog.records


def test_the_noise_of_update_and_count_together_is_the_noise_that_is_accounted_for() -> None:
    z, count_stddev = 1.025, 10.0
    update_multiplier = update_noise(z, count_stddev)
    # Two releases with sensitivities 1 and 1/2 are one Gaussian release: their inverse squares add up.
    assert update_multiplier**-2 + (2 * count_stddev) ** -2 == pytest.approx(z**-2)
    assert update_multiplier > z


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_users": 0}, "num_users is 0: set it to a whole number of at least 1"),
        ({"cohort_size": 0}, "cohort_size is 0"),
        ({"cohort_size": 101}, "cohort_size is 101: set it to a whole number at most 100"),
        ({"rounds": 0}, "rounds is 0"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier is 0\.0: set it to a number above 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan"),
        ({"interval": 0.0}, r"interval is 0\.0"),
        ({"sampling": "shuffled"}, "sampling is 'shuffled': set it to poisson, fixed or none"),
        ({"method": "prv"}, "method is 'prv': set it to rdp or pld"),
        ({"sampling": "none"}, "sampling=none uses all users: cohort_size is 10, set it to 100"),
        ({"sampling": "fixed", "method": "pld"}, "accountant=pld has no privacy losses of fixed-size cohorts"),
    ],
)
def test_invalid_arguments_are_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrivacyAccountant(**{"num_users": 100, "cohort_size": 10, "rounds": 5, "noise_multiplier": 1.0, **arguments})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_an_invalid_delta_is_one_sentence(delta: float) -> None:
    accountant = PrivacyAccountant(100, 10, 5, 1.0)
    with pytest.raises(ValueError, match="above 0 and below 1"):
        accountant.epsilon(delta)
    with pytest.raises(ValueError, match="above 0 and below 1"):
        accountant.epsilon_spent(1, delta)


def test_other_invalid_numbers_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="epsilon is 0: set it to a number above 0"):
        PrivacyAccountant(100, 10, 5, 1.0).delta(0)
    with pytest.raises(ValueError, match=r"clipped_count_stddev=2 leaves nothing .*: set it to a number above 2"):
        update_noise(4.0, 2.0)
    with pytest.raises(ValueError, match="rounds is -1"):
        PrivacyAccountant(100, 10, 5, 1.0).epsilon_spent(-1, 1e-5)
