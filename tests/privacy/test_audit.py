"""The audit passes our own private training, and detects each way to break it that we could think of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from manyeyes.components import PoissonSampler
from manyeyes.core import guarantee
from manyeyes.core.population import Population
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.privacy.audit import Audit, audit
from manyeyes.privacy.mechanisms import GaussianSource

SMALL: dict[str, Any] = {"num_users": 50, "num_canaries": 2000, "reproducible_noise": True}


def without_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guarantee, "NORM_RTOL", math.inf)  # otherwise the round refuses the sum
    train = ReferenceEngine.train

    def train_unclipped(self: Any, weights: Any, plan: Any, context: Any, client_states: Any) -> Any:
        return train(self, weights, plan, replace(context, clipping_norm=math.inf), client_states)

    patch.setattr(ReferenceEngine, "train", train_unclipped)


def with_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    noise_like = GaussianSource.noise_like

    def half(self: Any, tensor: Tensor, stddev: float, personal_mask: Tensor | None) -> Tensor:
        return noise_like(self, tensor, stddev / 2, personal_mask)

    patch.setattr(GaussianSource, "noise_like", half)


def with_users_sampled_twice_as_often(patch: pytest.MonkeyPatch) -> None:
    def sample(self: PoissonSampler, population: Population, rng: np.random.Generator) -> Any:
        num_users = len(population.user_ids)
        return np.flatnonzero(rng.random(num_users) < 2 * self.cohort_size / num_users)

    patch.setattr(PoissonSampler, "sample", sample)


@pytest.mark.slow
def test_our_training_passes_and_the_attack_is_not_weak() -> None:
    result = audit(**SMALL)
    assert result.passed
    assert result.epsilon_lower_bound > 0.2
    assert result.gaussian_epsilon_lower_bound > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("break_training", [without_clip, with_half_the_noise, with_users_sampled_twice_as_often])
def test_broken_training_is_detected(
    break_training: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_training(monkeypatch)
    result = audit(**SMALL)
    assert not result.passed
    assert max(result.epsilon_lower_bound, result.gaussian_epsilon_lower_bound) > 1.2 * result.claimed_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["multiprocess", "vmap"])
def test_other_engines_give_the_same_result(engine: str) -> None:
    smaller: dict[str, Any] = SMALL | {"num_canaries": 200, "rounds": 2}
    actual, expected = audit(engine=engine, **smaller), audit(**smaller)
    assert (actual.num_correct, actual.passed) == (expected.num_correct, expected.passed)


@pytest.mark.slow
def test_the_command_prints_claim_proof_and_verdict(command: Any) -> None:
    actual = command("privacy", "audit", "--canaries", "200", "--users", "20", "--rounds", "2", "--epsilon", "4")
    assert (actual.code, actual.err) == (0, "")
    assert "claimed: epsilon 4 at delta 1e-05, over 2 rounds of about half of" in actual.out
    assert "guesses were right about which of 200 canaries took part" in actual.out
    assert "verdict: no violation found by this attack" in actual.out


def test_the_command_fails_when_the_guarantee_is_violated(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    violated = Audit(2.0, 1e-5, 100, 200, 2, 10, 10, 0.5, 2.1)
    monkeypatch.setattr("manyeyes.cli.privacy.audit", lambda *args, **options: violated)
    actual = command("privacy", "audit")
    assert actual.code == 1
    assert "THE GUARANTEE IS VIOLATED" in actual.out


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(ValueError, match="num_canaries is 5: set it to a whole number of at least 40"):
        audit(num_canaries=5)
