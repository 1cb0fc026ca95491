"""Computing noise, rounds, epsilon or delta from the other three; and simulating the noise of a large cohort."""

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

FLAIR_USERS = 41131


def test_the_default_delta_is_that_of_flair() -> None:
    assert auto_delta(FLAIR_USERS) == pytest.approx(8.40e-6, rel=1e-3)


@pytest.mark.fast_cases("41131-200-auto-rdp")
@pytest.mark.parametrize(
    ("users", "cohort", "delta", "method", "noise"),
    [
        (FLAIR_USERS, 5000, "auto", "rdp", 18.67),
        pytest.param(FLAIR_USERS, 5000, "auto", "pld", 17.36, marks=pytest.mark.slow),
        (FLAIR_USERS, 200, "auto", "rdp", 1.025),
        (FLAIR_USERS, 200, "auto", "pld", 0.974),
        (2_000_000, 1000, 1e-5, "rdp", 0.6316),
        pytest.param(2_000_000, 1000, 1e-5, "pld", 0.5455, marks=pytest.mark.slow),
    ],
)
def test_the_noise_for_epsilon_2_in_5000_rounds_equals_published_numbers(
    users: int, cohort: int, delta: float | str, method: str, noise: float
) -> None:
    """Numbers of dp-accounting 0.6; the last one also of the PRV accountant."""
    actual = calibrate(users, cohort, rounds=5000, epsilon=2, delta=delta, accountant=method)
    assert actual.accountant.noise_multiplier == pytest.approx(noise, rel=2e-3)
    assert actual.solved == "noise_multiplier"


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.floats(0.3, 20),
    st.integers(1, 2000),
    st.integers(1, 1000),
    st.sampled_from(["poisson", "fixed"]),
    st.floats(1e-9, 1e-3),
)
def test_the_noise_is_the_smallest_within_epsilon(
    epsilon: float, rounds: int, cohort: int, sampling: str, delta: float
) -> None:
    accountant = calibrate(1000, cohort, rounds=rounds, epsilon=epsilon, delta=delta, sampling=sampling).accountant
    assert accountant.epsilon(delta) <= epsilon
    assert replace(accountant, noise_multiplier=accountant.noise_multiplier * (1 - 1e-4)).epsilon(delta) > epsilon


@settings(max_examples=10, deadline=None)
@given(st.floats(0.6, 20), st.integers(1, 300), st.floats(0.5, 10))
def test_the_rounds_are_the_most_within_epsilon(noise: float, cohort: int, surplus: float) -> None:
    epsilon = PrivacyAccountant(1000, cohort, 1, noise).epsilon(1e-5) * (1 + surplus)
    accountant = calibrate(1000, cohort, noise_multiplier=noise, epsilon=epsilon, delta=1e-5).accountant
    assert accountant.epsilon(1e-5) <= epsilon
    assert replace(accountant, rounds=accountant.rounds + 1).epsilon(1e-5) > epsilon


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_each_of_the_four_follows_from_the_others(method: str) -> None:
    known: dict[str, Any] = {"rounds": 300, "noise_multiplier": 1.3, "delta": 1e-6}
    known["epsilon"] = calibrate(1000, 50, accountant=method, **known).epsilon
    for name in known:
        actual = calibrate(1000, 50, accountant=method, **{**known, name: None})
        value = getattr(actual.accountant if name in ("rounds", "noise_multiplier") else actual, name)
        assert value == pytest.approx(known[name], rel=2e-3), name
        assert actual.solved == name


def test_a_small_cohort_carries_the_noise_of_a_large_one() -> None:
    """FLAIR, section 5.1: 18.67 on a sum of 5,000 is 18.67 x 200 / 5,000 on a sum of 200, and the same on the mean."""
    actual = Simulation(PrivacyAccountant(FLAIR_USERS, 5000, 5000, 18.67), 200)
    assert actual.noise_multiplier == pytest.approx(0.7468)
    assert actual.noise_multiplier / actual.cohort_size == pytest.approx(18.67 / 5000)
    assert actual.accountant.epsilon(auto_delta(FLAIR_USERS)) == pytest.approx(2, rel=1e-3)
    assert actual.small_cohort_accountant() == PrivacyAccountant(FLAIR_USERS, 200, 5000, actual.noise_multiplier)


def test_the_description_says_what_is_simulated_and_what_is_spent() -> None:
    accountant, delta = PrivacyAccountant(FLAIR_USERS, 5000, 5000, 18.67), auto_delta(FLAIR_USERS)
    simulated = Simulation(accountant, 200).describe(delta)
    assert "that of 5,000 users per round, simulated with 200" in simulated
    assert f"spends epsilon {PrivacyAccountant(FLAIR_USERS, 200, 5000, 0.7468).epsilon(delta):.3g}" in simulated
    assert Simulation(accountant, 5000).describe(delta) == (
        "(2, 8.4e-06)-differential privacy (add or remove one user), with 5,000 users per round."
    )


def test_even_a_tiny_epsilon_has_a_noise_multiplier() -> None:
    """delta at epsilon 0 is 2 Phi(mu / 2) - 1 with mu = sqrt(T) / z: a total variation distance, which rdp bounds."""
    exact = math.sqrt(5) / (2 * norm.ppf((1 + 1e-3) / 2))
    actual = calibrate(100, 100, rounds=5, epsilon=1e-12, delta=1e-3, sampling="none").accountant.noise_multiplier
    assert exact < actual < 2 * exact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 5, "noise_multiplier": 1.0, "epsilon": 1.0}, "set three, and one is computed; all four are set"),
        ({"rounds": 5}, "noise_multiplier and epsilon are missing"),
        ({"rounds": 5, "epsilon": 0.0}, r"epsilon is 0\.0: set it to a number above 0"),
        ({"rounds": 5, "epsilon": -1.0}, r"epsilon is -1\.0"),
        ({"rounds": 5, "epsilon": 1.0, "delta": 1.0}, r"delta is 1\.0: set it to a number above 0 and below 1"),
        ({"rounds": 5, "epsilon": 1.0, "delta": "some"}, "delta is 'some': set it to a number"),
        ({"rounds": 5, "noise_multiplier": 0.0}, r"noise_multiplier is 0\.0"),
        ({"rounds": 5, "noise_multiplier": 1.0, "cohort_size": 200}, "cohort_size is 200"),
        (
            {"rounds": 5, "noise_multiplier": 1.0, "num_users": 1, "cohort_size": 1},
            "num_users is 1: set it to a whole number of at least 2",
        ),
        ({"noise_multiplier": 0.5, "epsilon": 0.1}, "one round with a noise multiplier of 0.5 spends epsilon"),
        ({"rounds": 5, "noise_multiplier": 1e8}, "noise multiplier of 1e.08 gives epsilon 0 at delta 0.00631: set one"),
        ({"noise_multiplier": 1e9, "epsilon": 1.0}, "for a billion rounds: set less noise"),
    ],
)
def test_what_cannot_be_computed_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(**{"num_users": 100, "cohort_size": 10, **arguments})


def test_the_simulated_cohort_is_at_least_the_cohort_that_trains() -> None:
    with pytest.raises(ValueError, match="noise_cohort_size is 10: set it to a whole number of at least 20"):
        Simulation(PrivacyAccountant(100, 10, 5, 1.0), 20)
