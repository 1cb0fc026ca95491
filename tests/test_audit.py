"""The audit passes our own training, and finds out each way to break it that we could think of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyeyes import guarantee
from manyeyes.audit import Audit, audit
from manyeyes.engine.reference import Reference
from manyeyes.parts import Poisson, privacy
from manyeyes.population import Population

SMALL: dict[str, Any] = {"users": 50, "canaries": 2000, "reproducible_noise": True}


def without_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guarantee, "ROUNDING", math.inf)  # the round itself would refuse the sum
    train = Reference.train
    patch.setattr(
        Reference, "train", lambda self, weights, plan, work, held: train(self, weights, plan, loose(work), held)
    )


def loose(work: Any) -> Any:
    return replace(work, bound=math.inf)


def with_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    right = privacy.gaussian
    patch.setattr(privacy, "gaussian", lambda like, std, personal, normals: right(like, std / 2, personal, normals))


def with_users_drawn_twice_as_often(patch: pytest.MonkeyPatch) -> None:
    def select(self: Poisson, population: Population, rng: np.random.Generator) -> Any:
        users = len(population.users)
        return np.flatnonzero(rng.random(users) < 2 * self.clients / users)

    patch.setattr(Poisson, "select", select)


def test_what_we_promise_is_kept_and_the_attack_is_not_idle() -> None:
    found = audit(**SMALL)
    assert found.kept
    assert found.least > 0.2
    assert found.least_gaussian > 0.5


@pytest.mark.parametrize("broken", [without_clip, with_half_the_noise, with_users_drawn_twice_as_often])
def test_broken_training_is_found_out(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    broken(monkeypatch)
    found = audit(**SMALL)
    assert not found.kept
    assert max(found.least, found.least_gaussian) > 1.2 * found.promised


@pytest.mark.parametrize("engine", ["ranks", "vector"])
def test_other_engines_are_audited_alike(engine: str) -> None:
    few: dict[str, Any] = SMALL | {"canaries": 200, "rounds": 2}
    found, wanted = audit(engine=engine, **few), audit(**few)
    assert (found.right, found.kept) == (wanted.right, wanted.kept)


def test_the_command_prints_promise_proof_and_verdict(command: Any) -> None:
    found = command("privacy", "audit", "--canaries", "200", "--users", "20", "--rounds", "2", "--epsilon", "4")
    assert found.code == 0
    assert "promised: epsilon 4 at delta 1e-05, over 2 rounds of about half of" in found.out
    assert "guesses who of 200 canaries was there were right" in found.out
    assert "verdict:  the promise holds as far as this attack can tell" in found.out


def test_the_command_says_when_a_promise_is_broken(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Audit(2.0, 1e-5, 100, 200, 2, 10, 10, 0.5, 2.1)
    monkeypatch.setattr("manyeyes.privacy_command.audit", lambda *given: broken)
    found = command("privacy", "audit")
    assert found.code == 1
    assert "THE PROMISE IS BROKEN" in found.out


def test_too_few_canaries_are_refused(command: Any) -> None:
    found = command("privacy", "audit", "--canaries", "5")
    assert (found.code, found.err) == (1, "manyeyes: canaries is 5: it must be a whole number of at least 40\n")
