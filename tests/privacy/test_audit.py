"""The audit passes our own training, and finds out each way to break it that we could think of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyeyes.components import PoissonSampler
from manyeyes.core import guarantee
from manyeyes.core.population import Population
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.privacy import mechanisms as privacy
from manyeyes.privacy.audit import Audit, audit

SMALL: dict[str, Any] = {"users": 50, "canaries": 2000, "reproducible_noise": True}


def without_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guarantee, "ROUNDING", math.inf)  # the round itself would refuse the sum
    train = ReferenceEngine.train
    patch.setattr(
        ReferenceEngine, "train", lambda self, weights, plan, work, held: train(self, weights, plan, loose(work), held)
    )


def loose(work: Any) -> Any:
    return replace(work, bound=math.inf)


def with_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    right = privacy.gaussian
    patch.setattr(privacy, "gaussian", lambda like, std, personal, normals: right(like, std / 2, personal, normals))


def with_users_drawn_twice_as_often(patch: pytest.MonkeyPatch) -> None:
    def select(self: PoissonSampler, population: Population, rng: np.random.Generator) -> Any:
        users = len(population.user_ids)
        return np.flatnonzero(rng.random(users) < 2 * self.cohort_size / users)

    patch.setattr(PoissonSampler, "select", select)


def test_what_we_promise_is_kept_and_the_attack_is_not_idle() -> None:
    actual = audit(**SMALL)
    assert actual.passed
    assert actual.epsilon_lower_bound > 0.2
    assert actual.gaussian_epsilon_lower_bound > 0.5


@pytest.mark.parametrize("broken", [without_clip, with_half_the_noise, with_users_drawn_twice_as_often])
def test_broken_training_is_found_out(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    broken(monkeypatch)
    actual = audit(**SMALL)
    assert not actual.passed
    assert max(actual.epsilon_lower_bound, actual.gaussian_epsilon_lower_bound) > 1.2 * actual.claimed_epsilon


@pytest.mark.parametrize("engine", ["multiprocess", "vmap"])
def test_other_engines_are_audited_alike(engine: str) -> None:
    few: dict[str, Any] = SMALL | {"canaries": 200, "rounds": 2}
    actual, wanted = audit(engine=engine, **few), audit(**few)
    assert (actual.num_correct, actual.passed) == (wanted.num_correct, wanted.passed)


def test_the_command_prints_promise_proof_and_verdict(command: Any) -> None:
    actual = command("privacy", "audit", "--canaries", "200", "--users", "20", "--rounds", "2", "--epsilon", "4")
    assert actual.code == 0
    assert "promised: epsilon 4 at delta 1e-05, over 2 rounds of about half of" in actual.out
    assert "guesses who of 200 canaries was there were right" in actual.out
    assert "verdict:  the promise holds as far as this attack can tell" in actual.out


def test_the_command_says_when_a_promise_is_broken(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Audit(2.0, 1e-5, 100, 200, 2, 10, 10, 0.5, 2.1)
    monkeypatch.setattr("manyeyes.cli.privacy.audit", lambda *given: broken)
    actual = command("privacy", "audit")
    assert actual.code == 1
    assert "THE PROMISE IS BROKEN" in actual.out


def test_too_few_canaries_are_refused(command: Any) -> None:
    actual = command("privacy", "audit", "--canaries", "5")
    assert (actual.code, actual.err) == (1, "manyeyes: canaries is 5: it must be a whole number of at least 40\n")
