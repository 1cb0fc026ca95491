"""Packing updates: bytes as counted, numbers as rounded by hand, nothing biased and nothing lost for good."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedadam, fedavg, fedper, fedprox, local_only, mimelite, scaffold
from manyeyes.components import BF16, AllClients, Centralized, Int8, TopK, UniformSampler, WeightUniformly
from manyeyes.components.numerics import l2_norms
from manyeyes.core.algorithm import Algorithm, Compressor
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.core.state import RoundContext, RoundMetrics, ServerState, communication_cost, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP, LocalDP

ALL: list[Compressor] = [BF16(), Int8(), Int8(7), TopK(0.1), TopK(1.0)]
CPU = torch.device("cpu")


def packed(part: Compressor, update: Tensor, seed: int = 0) -> Tensor:
    return part.decode(part.encode(update, make_rng(seed, "test")), len(update))


@pytest.mark.parametrize("part", ALL, ids=repr)
@pytest.mark.parametrize("numbers", [1, 7, 1024, 2500])
def test_the_bytes_are_those_of_the_arrays_that_travel(part: Compressor, numbers: int) -> None:
    arrays = part.encode(torch.randn(numbers), make_rng(0, "test"))
    assert part.num_bytes(numbers) == sum(array.numel() * array.element_size() for array in arrays.values())


def test_bytes_by_hand() -> None:
    assert [part.num_bytes(1000) for part in (BF16(), Int8(300), TopK(0.01), TopK(0.0001))] == [2000, 1016, 80, 8]


def test_bf16_rounds_to_eight_bits_of_mantissa() -> None:
    actual = packed(BF16(), torch.tensor([1.0, 1 + 2**-7, 1 + 2**-9, -3.0]))
    assert actual.tolist() == [1.0, 1 + 2**-7, 1.0, -3.0]


def test_int8_keeps_whole_steps_and_scales_every_chunk_by_itself() -> None:
    """Chunks (127, -1, 0) and (0.254, 0.002, 0): steps of 1 and of 0.002; and zeros stay zeros."""
    update = torch.tensor([127.0, -1.0, 0.0, 0.254, 0.002, 0.0, 0.0])
    part = Int8(3)
    arrays = part.encode(update, make_rng(0, "test"))
    assert arrays["values"].tolist()[:3] == [127, -1, 0]
    assert arrays["scales"].tolist() == pytest.approx([1.0, 0.002, 0.0])
    torch.testing.assert_close(part.decode(arrays, 7), update, rtol=0, atol=0.00201)


def test_int8_goes_up_as_often_as_it_should() -> None:
    """0.25 of a step is 1 in a quarter of 40,000 draws, within 5 standard deviations."""
    update = torch.cat([torch.tensor([127.0]), torch.full((40_000,), 0.25)])
    actual = packed(Int8(50_000), update)[1:]
    assert set(actual.tolist()) == {0.0, 1.0}
    assert abs(float(actual.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 40_000)


def test_int8_is_unbiased_and_no_further_off_than_a_step() -> None:
    update = torch.from_numpy(np.random.default_rng(0).standard_normal(500).astype(np.float32))
    actual = torch.stack([packed(Int8(100), update, seed) for seed in range(400)])
    step = (update.view(5, 100).abs().amax(1) / 127).repeat_interleave(100)
    assert ((actual - update).abs() <= step * 1.001).all()
    assert ((actual.mean(0) - update).abs() < 5 * step / math.sqrt(4 * 400)).all()  # a coin's deviation is at most 1/2


def test_top_k_sends_the_largest_and_their_places() -> None:
    arrays = TopK(0.4).encode(torch.tensor([1.0, -5.0, 0.5, 2.0, 0.0]), make_rng(0, "test"))
    assert arrays["indices"].tolist() == [1, 3]
    assert arrays["values"].tolist() == [-5.0, 2.0]
    assert TopK(0.4).decode(arrays, 5).tolist() == [0.0, -5.0, 0.0, 2.0, 0.0]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"compressor\.fraction is 0: it must be above 0 and at most 1"):
        TopK(0)
    with pytest.raises(ValueError, match=r"compressor\.block_size is 0"):
        Int8(0)


MODEL = FlatModel(build_model("linear", 3, size=8, seed=0))
FEDAVG = replace(fedavg(lr=0.1, batch_size=3), sampler=AllClients(), client_weighting=WeightUniformly())
N = MODEL.num_shared


def run(
    algorithm: Algorithm, population: Population, rounds: int = 1
) -> tuple[ServerState, dict[int, Any], RoundMetrics]:
    engine = ReferenceEngine(EngineSetup(MODEL, population, Preprocess(), CPU))
    state, clients = init_state(algorithm, MODEL.read(), MODEL.num_trainable), dict[int, Any]()
    for _ in range(rounds):
        state, metrics = run_round(algorithm, state, population, engine, clients, seed=0)
    return state, clients, metrics


def sent(population: Population, weights: Tensor, round: int = 0) -> list[Tensor]:
    """The update of each client by itself, unpacked."""
    engine, plan = (
        ReferenceEngine(EngineSetup(MODEL, population, Preprocess(), CPU)),
        plan_round(FEDAVG, population, 0, round),
    )
    work = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None)
    return [engine.train(weights, replace(plan, clients=(client,)), work, {}).update_W for client in plan.clients]


def test_a_round_sums_what_the_server_unpacked(population: Population) -> None:
    state, clients, _ = run(replace(FEDAVG, compressor=BF16()), population)
    expected = torch.stack([update.to(torch.bfloat16).float() for update in sent(population, MODEL.read())]).mean(0)
    torch.testing.assert_close(MODEL.read() - state.weights, expected, rtol=1e-5, atol=1e-7)
    assert clients == {}


def test_what_top_k_leaves_out_is_owed_and_sent_later(population: Population) -> None:
    """Two rounds by hand: the largest third of the update, then of the next one plus what was left of the first."""
    weights, owed = MODEL.read(), torch.zeros(len(population.user_ids), N)
    for round in range(2):
        wanted = torch.stack(sent(population, weights, round)) + owed[plan_order(population, round)]
        cut = wanted.abs().sort(1, descending=True).values[:, math.ceil(N / 3) - 1 : math.ceil(N / 3)]
        received = torch.where(wanted.abs() >= cut, wanted, 0)
        owed[plan_order(population, round)] = wanted - received
        weights = weights - received.mean(0)
    state, clients, _ = run(replace(FEDAVG, compressor=TopK(1 / 3)), population, rounds=2)
    torch.testing.assert_close(state.weights, weights, rtol=1e-5, atol=1e-6)
    for user, kept in clients.items():
        torch.testing.assert_close(kept["owed"], owed[user], rtol=1e-4, atol=1e-6)


def plan_order(population: Population, round: int) -> list[int]:
    return [client.user for client in plan_round(FEDAVG, population, 0, round).clients]


def test_int8_draws_from_seed_round_and_user_alone(population: Population) -> None:
    one, _, _ = run(replace(FEDAVG, compressor=Int8()), population, 2)
    same, _, _ = run(replace(FEDAVG, compressor=Int8()), population, 2)
    plain, _, _ = run(FEDAVG, population, 2)
    assert torch.equal(one.weights, same.weights)
    assert not torch.equal(one.weights, plain.weights)
    assert l2_norms(one.weights - plain.weights) < 0.02 * l2_norms(MODEL.read() - plain.weights)


@pytest.mark.parametrize("part", [BF16(), Int8(), Int8(100_000), TopK(0.2)], ids=repr)
def test_no_packed_update_counts_for_more_than_the_bound(population: Population, part: Compressor) -> None:
    """Of one client; rounding up would lengthen its update, so what is unpacked is bounded once more."""
    engine = ReferenceEngine(EngineSetup(MODEL, population, Preprocess(), CPU))
    plan = plan_round(replace(FEDAVG, sampler=UniformSampler(1)), population, 0, 0)
    work = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, clipping_norm=0.01, compressor=part)
    actual = engine.train(MODEL.read(), plan, work, {plan.clients[0].client_id: {"owed": torch.full((N,), 3.0)}})
    assert float(l2_norms(actual.update_W)) <= 0.01 * (1 + 1e-6)
    assert actual.norm_K[0] > 1  # what was owed counts too, before the bound
    if part.error_feedback:
        assert float(l2_norms(actual.client_states[plan.clients[0].client_id]["owed"])) <= 0.01


@pytest.mark.parametrize("part", [Int8(), TopK(0.5)], ids=repr)
def test_personal_layers_are_neither_packed_nor_counted(population: Population, part: Compressor) -> None:
    model = FlatModel(build_model("lenet", 3, size=8, width=4, seed=0))
    algorithm = replace(fedper(head_layers=1, batch_size=3), sampler=AllClients(), compressor=part)
    engine = ReferenceEngine(EngineSetup(model, population, Preprocess(), CPU))
    assert algorithm.personal_layers is not None
    mask = engine.personal_mask(algorithm.personal_layers)
    clients: dict[int, Any] = {}
    state, metrics = run_round(
        algorithm, init_state(algorithm, model.read(), model.num_trainable), population, engine, clients, seed=0
    )
    shared = int((~mask).sum())
    assert 0 < shared < model.num_shared
    assert torch.equal(state.weights[mask], model.read()[mask])
    assert metrics.bytes_up == len(population.user_ids) * part.num_bytes(shared)
    assert metrics.bytes_down == len(population.user_ids) * 4 * shared
    assert {name: len(kept) for name, kept in clients[0].items()} == {
        "personal": model.num_shared - shared,
        **({"owed": shared} if part.error_feedback else {}),
    }


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (fedavg(), 4 * 100, 4 * 100),
        (fedadam(), 4 * 100, 4 * 100),
        (scaffold(), 4 * 100 + 4 * 90, 4 * 100 + 4 * 90),  # the change of c_k, and c
        (mimelite(), 4 * 100 + 4 * 90, 4 * 100 + 4 * 90),  # a whole gradient, and the momentum
        (fedprox(), 4 * 100, 4 * 100),
        (replace(scaffold(), compressor=BF16()), 2 * 100 + 4 * 90, 4 * 100 + 4 * 90),
    ],
)
def test_what_a_client_sends_and_is_sent(algorithm: Algorithm, up: int, down: int) -> None:
    """Of a model of 90 trained numbers and 10 statistics."""
    assert communication_cost(algorithm, 100, 90) == (up, down)


def test_one_who_shares_nothing_sends_nothing(population: Population) -> None:
    _, _, metrics = run(replace(local_only(), compressor=TopK(0.1)), population)
    assert (metrics.bytes_up, metrics.bytes_down) == (0, 0)


def test_what_cannot_be_packed_is_refused(population: Population) -> None:
    private = replace(FEDAVG, compressor=Int8(), privacy=LocalDP())
    with pytest.raises(ValueError, match="privacy=local adds the clients' noise to the sum, after compression"):
        private.validate(population)
    with pytest.raises(ValueError, match="Int8 needs several clients, and sampler=centralized has one"):
        replace(FEDAVG, sampler=Centralized(), compressor=Int8()).validate(population)
    replace(FEDAVG, compressor=Int8(), privacy=CentralDP(noise_multiplier=1.0, clipping_norm=0.1)).validate(population)
