"""Client weights against the formulas of FedAvg and FedNova."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.algorithms import fednova
from manyeyes.components import SGD, Adam, FedNovaWeighting, ProximalTerm, WeightByExamples, WeightUniformly
from manyeyes.components.weighting import normalization_factors
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels

SIZES, STEPS = np.array([6, 1, 3]), np.array([4, 1, 2])
POPULATION = Population.from_arrays(
    np.zeros((1, 1, 1, 3), np.uint8), SingleLabels(np.zeros(1, np.int64), ("any",)), [0]
)


def make_fednova(lr: float, momentum: float, mu: float) -> Algorithm:
    algorithm = fednova(lr=lr, momentum=momentum)
    return replace(algorithm, correction=ProximalTerm(mu)) if mu else algorithm


def step_weights(lr: float, momentum: float, mu: float, steps: int) -> list[float]:
    """Return a_k: how far the update moves if one step alone has a gradient of 1, for each step."""
    weights = []
    for only_step in range(steps):
        position, velocity = 0.0, 0.0
        for step in range(steps):
            velocity = momentum * velocity + (step == only_step) + mu * position
            position -= lr * velocity
        weights.append(-position / lr)
    return weights


def fractions(weighting: WeightByExamples | WeightUniformly | FedNovaWeighting, algorithm: Algorithm) -> np.ndarray:
    """Return the factor of each client's update in the update of the round."""
    return weighting.weights(algorithm, SIZES, STEPS, 0) / weighting.normalizer(algorithm, SIZES, STEPS, 0)


def test_weights_by_examples_are_n_k_over_n() -> None:
    np.testing.assert_allclose(fractions(WeightByExamples(), fednova()), [0.6, 0.1, 0.3])


def test_uniform_weights_are_one_over_k() -> None:
    np.testing.assert_allclose(fractions(WeightUniformly(), fednova()), [1 / 3] * 3)


def test_fednova_weights_are_tau_eff_p_over_tau() -> None:
    tau_eff = 0.6 * 4 + 0.1 * 1 + 0.3 * 2
    np.testing.assert_allclose(
        fractions(FedNovaWeighting(), fednova()), tau_eff * np.array([0.6 / 4, 0.1 / 1, 0.3 / 2])
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.floats(0, 0.95), st.sampled_from([0.0, 0.3, 2.0]))
def test_the_normalization_factor_is_the_sum_of_the_step_weights(steps: int, momentum: float, mu: float) -> None:
    actual = normalization_factors(make_fednova(0.1, momentum, mu), np.array([steps]), 0)
    np.testing.assert_allclose(actual, [sum(step_weights(0.1, momentum, mu, steps))], rtol=1e-9)


@pytest.mark.parametrize("mu", [10.0, 20.0])
def test_fednova_refuses_a_proximal_term_that_overshoots(mu: float) -> None:
    assert FedNovaWeighting().incompatibility(make_fednova(0.1, 0.0, mu), POPULATION) is not None


def test_fednova_refuses_momentum_that_persists() -> None:
    algorithm = replace(fednova(), client_optimizer=SGD(0.1, momentum=0.9, persist_state=True))
    assert FedNovaWeighting().incompatibility(algorithm, POPULATION) is not None


def test_fednova_refuses_adam() -> None:
    assert FedNovaWeighting().incompatibility(replace(fednova(), client_optimizer=Adam(0.1)), POPULATION) is not None
    assert FedNovaWeighting().incompatibility(fednova(), POPULATION) is None
