"""The result of a round does not depend on the rounds that an engine has run before it."""

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
from manyeyes.engines.gpu import step, trainer
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from tests.engines.engine_runs import initial_state, make_setup

SIZES = [9, 8, 8, 7, 3, 2, 2, 1]
ALGORITHM = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())


def _make_population() -> Population:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(len(SIZES)), SIZES)
    labels = SingleLabels(rng.integers(0, 3, len(users)), tuple("abc"))
    return Population.from_arrays(rng.integers(0, 256, (len(users), 12, 12, 3), np.uint8), labels, users)


POPULATION = _make_population()


def make_model() -> FlatModel:
    return FlatModel(build_model("lenet", 3, size=12, width=4))


def make_engine(model: FlatModel, compiles: bool = False) -> GpuEngine:
    engine = GpuEngine(make_setup(model, POPULATION), num_streams=1, width=8)
    engine.compiles = compiles
    return engine


def test_clients_are_grouped_alike_by_a_used_and_a_new_engine() -> None:
    model = make_model()
    state = initial_state(ALGORITHM, model)

    def weights_after_round(*earlier_plans: RoundPlan) -> Tensor:
        engine = make_engine(model)
        for plan in earlier_plans:
            run_round(ALGORITHM, state, POPULATION, engine, {}, 0, plan)
        return run_round(ALGORITHM, state, POPULATION, engine, {}, 0)[0].weights

    plan = plan_round(ALGORITHM, POPULATION, 0, 0)
    plan_of_one = replace(plan, clients=plan.clients[-1:])  # as Poisson sampling may draw it
    assert torch.equal(weights_after_round(plan_of_one), weights_after_round())


def test_a_step_is_checked_with_the_same_numbers_whenever_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Tensor] = []

    def record(sizes: dict[str, int], compiled_KP: Tensor, plain_KP: Tensor, exact_KP: Tensor) -> None:
        checked.append(compiled_KP.clone())

    for module in (step, trainer):
        monkeypatch.setattr(module, "compiled", lambda function: function)
    monkeypatch.setattr(step, "first_bad_gradient", record)
    model = make_model()
    first = initial_state(ALGORITHM, model)
    later = replace(first, round=7, weights=first.weights + 0.1)
    ends = [
        run_round(ALGORITHM, state, POPULATION, make_engine(model, compiles=True), {}, 0)[0] for state in (first, later)
    ]
    assert not torch.equal(ends[0].weights + 0.1, ends[1].weights)
    half = len(checked) // 2
    assert half > 1  # batches of several sizes
    assert all(torch.equal(early, late) for early, late in zip(checked[:half], checked[half:], strict=True))
    assert all(bool(gradient.any()) for gradient in checked)
