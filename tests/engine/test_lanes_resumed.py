"""What a round comes to does not depend on the rounds that an engine has played before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedavg
from manyeyes.data.augment import Augment
from manyeyes.engine import lanes, stepping
from manyeyes.engine.lanes import Lanes
from manyeyes.models import build
from manyeyes.models.flat import FlatModel
from manyeyes.parts import Everyone
from manyeyes.population import Population, SingleLabels
from manyeyes.round import plan_round, play_round, start
from manyeyes.work import Plan

SIZES = [9, 8, 8, 7, 3, 2, 2, 1]
ALGORITHM = replace(fedavg(batch=4, lr=0.1), cohort=Everyone())


def _people() -> Population:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(len(SIZES)), SIZES)
    labels = SingleLabels(rng.integers(0, 3, len(users)), tuple("abc"))
    return Population.of(rng.integers(0, 256, (len(users), 12, 12, 3), np.uint8), labels, users)


PEOPLE = _people()


def engine(flat: FlatModel, compile: bool = False) -> Lanes:
    cpu = torch.device("cpu")
    return Lanes(flat, PEOPLE, Augment(), cpu, lanes=1, width=8, precision="float32", compile=compile)


def test_clients_are_grouped_alike_by_an_engine_that_goes_on_and_by_a_new_one() -> None:
    flat = FlatModel(build("lenet", 3, size=12, width=4))
    state = start(ALGORITHM, flat.read(), flat.trained)

    def everyones_round(*before: Plan) -> Tensor:
        used = engine(flat)
        for plan in before:
            play_round(ALGORITHM, state, PEOPLE, used, {}, 0, plan)
        return play_round(ALGORITHM, state, PEOPLE, used, {}, 0)[0].weights

    everyone = plan_round(ALGORITHM, PEOPLE, 0, 0)
    alone = replace(everyone, clients=everyone.clients[-1:])  # as chance may have it with Poisson's cohorts
    assert torch.equal(everyones_round(alone), everyones_round())


def test_a_step_is_tried_with_the_same_numbers_whenever_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Tensor] = []
    for module in (stepping, lanes):
        monkeypatch.setattr(module, "compiled", lambda plain: plain)
    monkeypatch.setattr(stepping, "wrong_parameter", lambda names, found, plain, exact: tried.append(found.clone()))
    flat = FlatModel(build("lenet", 3, size=12, width=4))
    begin = start(ALGORITHM, flat.read(), flat.trained)
    later = replace(begin, round=7, weights=begin.weights + 0.1)
    ends = [play_round(ALGORITHM, state, PEOPLE, engine(flat, compile=True), {}, 0) for state in (begin, later)]
    assert not torch.equal(ends[0][0].weights + 0.1, ends[1][0].weights)
    half = len(tried) // 2
    assert half > 1  # batches of several sizes
    assert all(torch.equal(one, other) for one, other in zip(tried[:half], tried[half:], strict=True))
    assert all(bool(one.any()) for one in tried)
