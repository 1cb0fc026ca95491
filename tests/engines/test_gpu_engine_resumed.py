"""What a round comes to does not depend on the rounds that an engine has played before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.gpu import engine as lanes
from manyeyes.engines.gpu import step as stepping
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel

SIZES = [9, 8, 8, 7, 3, 2, 2, 1]
ALGORITHM = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())


def _people() -> Population:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(len(SIZES)), SIZES)
    labels = SingleLabels(rng.integers(0, 3, len(users)), tuple("abc"))
    return Population.from_arrays(rng.integers(0, 256, (len(users), 12, 12, 3), np.uint8), labels, users)


PEOPLE = _people()


def engine(flat: FlatModel, compile: bool = False) -> GpuEngine:
    cpu = torch.device("cpu")
    return GpuEngine(flat, PEOPLE, Preprocess(), cpu, num_streams=1, width=8, precision="float32", compile=compile)


def test_clients_are_grouped_alike_by_an_engine_that_goes_on_and_by_a_new_one() -> None:
    flat = FlatModel(build_model("lenet", 3, size=12, width=4))
    state = init_state(ALGORITHM, flat.read(), flat.num_trainable)

    def everyones_round(*before: RoundPlan) -> Tensor:
        used = engine(flat)
        for plan in before:
            run_round(ALGORITHM, state, PEOPLE, used, {}, 0, plan)
        return run_round(ALGORITHM, state, PEOPLE, used, {}, 0)[0].weights

    everyone = plan_round(ALGORITHM, PEOPLE, 0, 0)
    alone = replace(everyone, clients=everyone.clients[-1:])  # as chance may have it with Poisson's cohorts
    assert torch.equal(everyones_round(alone), everyones_round())


def test_a_step_is_tried_with_the_same_numbers_whenever_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Tensor] = []
    for module in (stepping, lanes):
        monkeypatch.setattr(module, "compiled", lambda plain: plain)
    monkeypatch.setattr(stepping, "wrong_parameter", lambda names, found, plain, exact: tried.append(found.clone()))
    flat = FlatModel(build_model("lenet", 3, size=12, width=4))
    begin = init_state(ALGORITHM, flat.read(), flat.num_trainable)
    later = replace(begin, round=7, weights=begin.weights + 0.1)
    ends = [run_round(ALGORITHM, state, PEOPLE, engine(flat, compile=True), {}, 0) for state in (begin, later)]
    assert not torch.equal(ends[0][0].weights + 0.1, ends[1][0].weights)
    half = len(tried) // 2
    assert half > 1  # batches of several sizes
    assert all(torch.equal(one, other) for one, other in zip(tried[:half], tried[half:], strict=True))
    assert all(bool(one.any()) for one in tried)
