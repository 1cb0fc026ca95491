"""Lower bounds on epsilon against closed forms, written-out sums, and attacks on mechanisms with a known epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from manyeyes.privacy.accountant import PrivacyAccountant
from manyeyes.privacy.audit import epsilon_lower_bound, gaussian_delta, gaussian_epsilon_lower_bound, p_value


@pytest.mark.parametrize(("guesses", "confidence"), [(10, 0.95), (100, 0.95), (100, 0.99)])
def test_only_correct_guesses_and_no_delta_have_a_closed_form(guesses: int, confidence: float) -> None:
    """q^r = 1 - confidence, so epsilon = log(q / (1 - q))."""
    q = (1 - confidence) ** (1 / guesses)
    actual = epsilon_lower_bound(guesses, guesses, guesses, 0.0, confidence)
    assert actual == pytest.approx(math.log(q / (1 - q)), abs=1e-5)


def test_without_delta_it_is_the_largest_epsilon_that_a_binomial_test_rejects() -> None:
    actual = epsilon_lower_bound(1000, 100, 80, 0.0)
    for epsilon, is_likely in ((actual - 1e-4, False), (actual + 1e-4, True)):
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        tail = sum(math.comb(100, k) * p**k * (1 - p) ** (100 - k) for k in range(80, 101))
        assert (tail > 0.05) == is_likely


def test_delta_adds_the_term_of_the_theorem() -> None:
    """Three guesses, two right, epsilon 0: P[B >= 2] = 1/2; P[B = 1] / 1 = 3/8, P[0 or 1] / 2 = 1/4."""
    assert p_value(10, 3, 2, 0.0, 0.0) == pytest.approx(1 / 2)
    assert p_value(10, 3, 2, 0.0, 0.01) == pytest.approx(1 / 2 + 2 * 10 * 0.01 * 3 / 8)
    assert p_value(10, 3, 2, 0.0, 0.5) == 1


def test_the_p_value_equals_the_written_out_sum() -> None:
    """As the paper's `p_value_DP_audit` computes it."""
    m, r, v, eps, delta = 500, 60, 45, 0.8, 1e-4
    q = 1 / (1 + math.exp(-eps))
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += float(binom.pmf(v - i, r, q))
        alpha = max(alpha, total / i)
    assert p_value(m, r, v, eps, delta) == pytest.approx(float(binom.sf(v - 1, r, q)) + alpha * delta * 2 * m)


def test_random_guesses_prove_nothing() -> None:
    assert epsilon_lower_bound(1000, 100, 50, 1e-5) == 0
    assert epsilon_lower_bound(1000, 100, 0, 1e-5) == 0
    assert gaussian_epsilon_lower_bound(50, 100, 50, 100, 1e-5) == 0
    assert gaussian_epsilon_lower_bound(100, 100, 0, 100, 1e-5) == 0


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 correct of 4 guesses about 10 canaries is impossible"):
        p_value(10, 4, 5, 1.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_bound_on_randomized_response_is_tight_and_valid(epsilon: float) -> None:
    """It tells the truth with probability e^eps / (1 + e^eps): the bound is wrong in at most 5 % of trials."""
    rng, trials, canaries = np.random.default_rng(0), 200, 1000
    num_correct = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), trials)
    actual = np.array([epsilon_lower_bound(canaries, canaries, int(v), 0.0) for v in num_correct])
    assert (actual > epsilon).mean() < 0.05 + 5 * math.sqrt(0.05 * 0.95 / trials)
    assert np.median(actual) > 0.7 * epsilon


@pytest.mark.fast_cases("0.4")
@pytest.mark.parametrize("mu", [0.4, 1.0, 2.0])
def test_the_bound_on_a_gaussian_release_is_tight_and_valid(mu: float) -> None:
    rng, trials, n, delta = np.random.default_rng(1), 200, 5000, 1e-5
    error = float(norm.cdf(-mu / 2))
    exact = PrivacyAccountant(1, 1, 1, 1 / mu, "none", "pld", 1e-4).epsilon(delta)
    false_alarms, misses = rng.binomial(n, error, (2, trials)).tolist()
    actual = np.array(
        [gaussian_epsilon_lower_bound(a, n, b, n, delta) for a, b in zip(false_alarms, misses, strict=True)]
    )
    assert (actual > exact).mean() < 0.05
    assert np.median(actual) > 0.8 * exact


def test_the_delta_of_a_gaussian_release_equals_the_accountants() -> None:
    assert gaussian_delta(0.5, 2.0) == pytest.approx(
        PrivacyAccountant(1, 1, 1, 2.0, "none", "pld", 1e-4).delta(2.0), rel=1e-3
    )
    assert gaussian_delta(0.0, 1.0) == 0
