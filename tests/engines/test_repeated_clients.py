"""A cohort in which a client is drawn several times: each draw trains on its own examples and counts once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedprox, fedvc
from manyeyes.components import Int8, ProximalTerm, SizeWeightedSampler
from manyeyes.core.plan import ClientPlan, RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.state import CohortResult
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.engine_runs import make_round_context, make_setup, relative_error
from tests.engines.gpu_runs import POPULATION, make_gpu_engine
from tests.engines.multiprocess_runs import NEEDS_WORKERS

ALGORITHM = fedvc(cohort_size=9, virtual_client_size=6, batch_size=4, lr=0.1, replacement=True)
FEW_USERS = POPULATION.filter(POPULATION.owners(np.arange(len(POPULATION))) < 3)


def num_earlier_draws(client: ClientPlan) -> int:
    return int(str(client.stream).partition("/")[2] or 0)


def make_plan(population: Population = POPULATION) -> RoundPlan:
    plan = plan_round(ALGORITHM, population, seed=1, round=0)
    assert max(map(num_earlier_draws, plan.clients)) >= 2, "no client is drawn three times: choose another seed"
    return plan


def train_on(engine: EngineBase, plan: RoundPlan, weights: Tensor, lr: float = 0.1) -> CohortResult:
    with engine:
        return engine.train(weights, plan, make_round_context(ALGORITHM, lr), {})


def make_linear_setup() -> EngineSetup:
    return make_setup(FlatModel(build_model("linear", 5, size=14, seed=0)), POPULATION)


def test_every_draw_has_examples_of_its_own_and_the_first_is_that_of_a_cohort_without_repeats() -> None:
    plan = make_plan()
    alone = {client.client_id: client for client in plan.clients if num_earlier_draws(client) == 0}
    assert [num_earlier_draws(client) for client in plan.clients] == [
        sum(earlier.client_id == client.client_id for earlier in plan.clients[:k])
        for k, client in enumerate(plan.clients)
    ]
    everyone = replace(ALGORITHM, sampler=SizeWeightedSampler(9))
    for client in plan_round(everyone, POPULATION, seed=1, round=0).clients:
        if (first := alone.get(client.client_id)) is not None:
            np.testing.assert_array_equal(first.example_indices_SB, client.example_indices_SB)
    client_id = max(plan.clients, key=num_earlier_draws).client_id
    draws = [client for client in plan.clients if client.client_id == client_id]
    assert len({tuple(sorted(c.example_indices_SB.ravel().tolist())) for c in draws}) == len(draws)
    assert len({int(c.dropout_seeds_S[0]) for c in draws}) == len(draws)
    assert {client.weight for client in plan.clients} == {1.0}


def test_the_round_is_the_sum_of_its_draws() -> None:
    plan, setup = make_plan(), make_linear_setup()
    weights = setup.model.read()
    together = train_on(ReferenceEngine(setup), plan, weights)
    alone = [train_on(ReferenceEngine(setup), replace(plan, clients=(client,)), weights) for client in plan.clients]
    torch.testing.assert_close(together.update_W, sum(result.update_W for result in alone))
    np.testing.assert_allclose(together.loss_K, np.concatenate([result.loss_K for result in alone]), rtol=1e-6)
    assert together.client_states == {}


@pytest.mark.parametrize("name", ["vmap", pytest.param("cuda_graphs", marks=pytest.mark.slow)])
def test_gpu_engines_equal_the_reference(name: str) -> None:
    plan, setup = make_plan(), make_linear_setup()
    expected = train_on(ReferenceEngine(setup), plan, setup.model.read())
    actual = train_on(make_gpu_engine(setup, name), plan, setup.model.read())
    assert relative_error(actual.update_W, expected.update_W) < 1e-5
    np.testing.assert_allclose(actual.loss_K, expected.loss_K, rtol=1e-5)


@pytest.mark.slow
@NEEDS_WORKERS
def test_worker_processes_equal_the_reference() -> None:
    plan, setup = make_plan(), make_linear_setup()
    expected = train_on(ReferenceEngine(setup), plan, setup.model.read())
    actual = train_on(MultiprocessEngine(make_setup(setup.model, POPULATION, workers=2)), plan, setup.model.read())
    assert relative_error(actual.update_W, expected.update_W) < 1e-5
    np.testing.assert_allclose(actual.loss_K, expected.loss_K, rtol=1e-5)


def test_rounding_errors_of_two_draws_of_a_client_are_independent() -> None:
    plan, setup = make_plan(), make_linear_setup()
    context = make_round_context(ALGORITHM, 0.1, compressor=Int8(64))
    first = plan.clients[0]
    updates = []
    for stream in ("0", "0/1"):  # the same examples twice
        clients = (replace(first, stream=stream),)
        with ReferenceEngine(setup) as engine:
            updates.append(engine.train(setup.model.read(), replace(plan, clients=clients), context, {}).update_W)
    assert not torch.equal(*updates)


def test_a_run_may_have_more_draws_than_users() -> None:
    algorithm = replace(ALGORITHM, correction=ProximalTerm(0.1))
    result = train(FEW_USERS, "linear", algorithm, rounds=2, engine="reference", device="cpu", progress=False)
    assert [event["num_clients"] for event in result.events[1:]] == [9, 9]
    assert [event["num_images"] for event in result.events[1:]] == [54, 54]


def test_the_proximal_term_of_fedprox_keeps_no_state_and_is_allowed() -> None:
    algorithm = replace(fedprox(), sampler=SizeWeightedSampler(5, replacement=True))
    algorithm.validate(POPULATION)
