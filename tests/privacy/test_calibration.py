"""Any one of noise, rounds, epsilon and delta from the others; and a small cohort with a large one's noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from manyeyes.privacy.accountant import PrivacyAccountant
from manyeyes.privacy.calibration import Simulation, auto_delta, calibrate

FLAIR = 41131


def test_the_usual_delta_is_that_of_flair() -> None:
    assert auto_delta(FLAIR) == pytest.approx(8.40e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("users", "cohort", "delta", "accountant", "noise"),
    [
        (FLAIR, 5000, "auto", "rdp", 18.67),
        (FLAIR, 5000, "auto", "pld", 17.36),
        (FLAIR, 200, "auto", "rdp", 1.025),
        (FLAIR, 200, "auto", "pld", 0.974),
        (2_000_000, 1000, 1e-5, "rdp", 0.6316),
        (2_000_000, 1000, 1e-5, "pld", 0.5455),
    ],
)
def test_the_noise_for_epsilon_2_in_5000_rounds_is_the_known_one(
    users: int, cohort: int, delta: float | str, accountant: str, noise: float
) -> None:
    """Computed once with dp-accounting 0.6, and the last with the PRV accountant too."""
    actual = calibrate(users, cohort, rounds=5000, epsilon=2, delta=delta, accountant=accountant)
    assert actual.account.noise_multiplier == pytest.approx(noise, rel=2e-3)
    assert actual.solved == "noise"


@settings(max_examples=6, deadline=None)
@given(
    st.floats(0.3, 20),
    st.integers(1, 2000),
    st.integers(1, 1000),
    st.sampled_from(["poisson", "fixed"]),
    st.floats(1e-9, 1e-3),
)
def test_noise_is_the_least_that_keeps_epsilon(
    epsilon: float, rounds: int, cohort: int, sampling: str, delta: float
) -> None:
    account = calibrate(1000, cohort, rounds=rounds, epsilon=epsilon, delta=delta, sampling=sampling).account
    assert account.epsilon(delta) <= epsilon
    assert replace(account, noise=account.noise_multiplier * (1 - 1e-4)).epsilon(delta) > epsilon


@settings(max_examples=10, deadline=None)
@given(st.floats(0.6, 20), st.integers(1, 300), st.floats(0.5, 10))
def test_rounds_are_the_most_that_keep_epsilon(noise: float, cohort: int, more: float) -> None:
    epsilon = PrivacyAccountant(1000, cohort, 1, noise).epsilon(1e-5) * (1 + more)
    account = calibrate(1000, cohort, noise=noise, epsilon=epsilon, delta=1e-5).account
    assert account.epsilon(1e-5) <= epsilon
    assert replace(account, rounds=account.rounds + 1).epsilon(1e-5) > epsilon


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_each_of_the_four_follows_from_the_others(accountant: str) -> None:
    known: dict[str, Any] = {"rounds": 300, "noise": 1.3, "delta": 1e-6}
    known["epsilon"] = calibrate(1000, 50, accountant=accountant, **known).epsilon
    for name in known:
        given = {**known, name: None}
        actual = calibrate(1000, 50, accountant=accountant, **given)
        value = getattr(actual.account if name in ("rounds", "noise") else actual, name)
        assert value == pytest.approx(known[name], rel=2e-3), name
        assert actual.solved == name


def test_a_small_cohort_carries_the_noise_of_a_large_one() -> None:
    """FLAIR, section 5.1: 18.67 on a sum of 5,000 is 18.67 x 200 / 5,000 on a sum of 200, and the same on the mean."""
    actual = Simulation(PrivacyAccountant(FLAIR, 5000, 5000, 18.67), 200)
    assert actual.noise_multiplier == pytest.approx(0.7468)
    assert (
        actual.mean_std(0.1) == pytest.approx(0.1 * 18.67 / 5000) == pytest.approx(0.1 * actual.noise_multiplier / 200)
    )
    assert actual.epsilon(auto_delta(FLAIR)) == pytest.approx(2, rel=1e-3)
    assert actual.small_cohort_accountant() == PrivacyAccountant(FLAIR, 200, 5000, actual.noise_multiplier)


def test_words_say_what_is_simulated_and_what_is_spent() -> None:
    account, delta = PrivacyAccountant(FLAIR, 5000, 5000, 18.67), auto_delta(FLAIR)
    simulated = Simulation(account, 200).describe(delta)
    assert "that of 5,000 users a round, simulated with 200" in simulated
    assert f"spends epsilon {PrivacyAccountant(FLAIR, 200, 5000, 0.7468).epsilon(delta):.3g}" in simulated
    assert Simulation(account, 5000).describe(delta) == (
        "(2, 8.4e-06)-differential privacy (add or remove one user), with 5,000 users a round."
    )


def test_even_the_least_epsilon_has_a_noise() -> None:
    """delta at epsilon 0 is 2 Phi(mu / 2) - 1 with mu = sqrt(T) / z: a total variation distance, which rdp bounds."""
    exact = math.sqrt(5) / (2 * norm.ppf((1 + 1e-3) / 2))
    actual = calibrate(100, 100, rounds=5, epsilon=1e-12, delta=1e-3, sampling="none").account.noise_multiplier
    assert exact < actual < 2 * exact


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rounds": 5, "noise": 1.0, "epsilon": 1.0}, "one is computed from the other three, and all are given"),
        ({"rounds": 5}, "noise and epsilon are missing"),
        ({"rounds": 5, "epsilon": 0.0}, "epsilon is 0.0: it must be a number above 0"),
        ({"rounds": 5, "epsilon": -1.0}, "epsilon is -1.0"),
        ({"rounds": 5, "epsilon": 1.0, "delta": 1.0}, "delta is 1.0: it must be above 0 and below 1"),
        ({"rounds": 5, "epsilon": 1.0, "delta": "some"}, "delta is 'some': it must be a number or auto"),
        ({"rounds": 5, "noise": 0.0}, "noise is 0.0"),
        ({"rounds": 5, "noise": 1.0, "cohort": 200}, "cohort is 200"),
        ({"rounds": 5, "noise": 1.0, "users": 1, "cohort": 1}, "users is 1: it must be a whole number of at least 2"),
        ({"noise": 0.5, "epsilon": 0.1}, "one round at noise 0.5 spends epsilon"),
        ({"rounds": 5, "noise": 1e8}, "noise 1e.08 leaves epsilon 0 at delta 0.00631: lower one of them"),
        ({"noise": 1e9, "epsilon": 1.0}, "for a billion rounds: lower it"),
    ],
)
def test_what_cannot_be_solved_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        calibrate(**{"users": 100, "cohort": 10, **given})


def test_a_small_cohort_must_be_the_smaller_one() -> None:
    with pytest.raises(ValueError, match="noise_cohort is 10: it must be at least the cohort that trains, 20"):
        Simulation(PrivacyAccountant(100, 10, 5, 1.0), 20)
