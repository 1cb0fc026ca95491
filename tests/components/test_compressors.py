"""Compressed updates: their bytes, their rounding against hand computations, no bias, and error feedback."""

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
from manyeyes.core.algorithm import Algorithm, Compressor
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.core.state import RoundContext, RoundMetrics, ServerState, communication_cost, init_state
from manyeyes.core.uplink import l2_norms
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP, LocalDP

COMPRESSORS: list[Compressor] = [BF16(), Int8(), Int8(7), TopK(0.1), TopK(1.0)]
CPU = torch.device("cpu")


def decoded(compressor: Compressor, update: Tensor, seed: int = 0) -> Tensor:
    """Return the update as the server decodes it."""
    return compressor.decode(compressor.encode(update, make_rng(seed, "test")), len(update))


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("num_elements", [1, 7, 1024, 2500])
def test_num_bytes_is_the_size_of_the_encoded_arrays(compressor: Compressor, num_elements: int) -> None:
    arrays = compressor.encode(torch.randn(num_elements), make_rng(0, "test"))
    assert compressor.num_bytes(num_elements) == sum(array.numel() * array.element_size() for array in arrays.values())


def test_num_bytes_equals_a_hand_computation() -> None:
    assert [compressor.num_bytes(1000) for compressor in (BF16(), Int8(300), TopK(0.01), TopK(0.0001))] == [
        2000,
        1016,
        80,
        8,
    ]


def test_bf16_rounds_to_eight_bits_of_mantissa() -> None:
    actual = decoded(BF16(), torch.tensor([1.0, 1 + 2**-7, 1 + 2**-9, -3.0]))
    assert actual.tolist() == [1.0, 1 + 2**-7, 1.0, -3.0]


def test_int8_keeps_whole_steps_and_scales_each_block() -> None:
    """Blocks (127, -1, 0) and (0.254, 0.002, 0): steps of 1 and of 0.002; zeros stay zeros."""
    update = torch.tensor([127.0, -1.0, 0.0, 0.254, 0.002, 0.0, 0.0])
    compressor = Int8(3)
    arrays = compressor.encode(update, make_rng(0, "test"))
    assert arrays["values"].tolist()[:3] == [127, -1, 0]
    assert arrays["scales"].tolist() == pytest.approx([1.0, 0.002, 0.0])
    torch.testing.assert_close(compressor.decode(arrays, 7), update, rtol=0, atol=0.00201)


def test_int8_rounds_up_with_the_right_probability() -> None:
    """0.25 of a step is 1 in a quarter of 40,000 draws, within 5 standard deviations."""
    update = torch.cat([torch.tensor([127.0]), torch.full((40_000,), 0.25)])
    actual = decoded(Int8(50_000), update)[1:]
    assert set(actual.tolist()) == {0.0, 1.0}
    assert abs(float(actual.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 40_000)


def test_int8_is_unbiased_and_within_one_step() -> None:
    update = torch.from_numpy(np.random.default_rng(0).standard_normal(500).astype(np.float32))
    actual = torch.stack([decoded(Int8(100), update, seed) for seed in range(400)])
    step = (update.view(5, 100).abs().amax(1) / 127).repeat_interleave(100)
    assert ((actual - update).abs() <= step * 1.001).all()
    assert (
        (actual.mean(0) - update).abs() < 5 * step / math.sqrt(4 * 400)
    ).all()  # the standard deviation of a rounding is at most half a step


def test_top_k_sends_the_largest_values_and_their_indices() -> None:
    arrays = TopK(0.4).encode(torch.tensor([1.0, -5.0, 0.5, 2.0, 0.0]), make_rng(0, "test"))
    assert arrays["indices"].tolist() == [1, 3]
    assert arrays["values"].tolist() == [-5.0, 2.0]
    assert TopK(0.4).decode(arrays, 5).tolist() == [0.0, -5.0, 0.0, 2.0, 0.0]


def test_options_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"compressor\.fraction is 0: set it to a number above 0 and at most 1"):
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


def client_updates(population: Population, weights: Tensor, round: int = 0) -> list[Tensor]:
    """Return the uncompressed update of each client."""
    engine = ReferenceEngine(EngineSetup(MODEL, population, Preprocess(), CPU))
    plan = plan_round(FEDAVG, population, 0, round)
    context = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None)
    return [engine.train(weights, replace(plan, clients=(client,)), context, {}).update_W for client in plan.clients]


def test_a_round_sums_what_the_server_undecoded(population: Population) -> None:
    state, clients, _ = run(replace(FEDAVG, compressor=BF16()), population)
    expected = torch.stack(
        [update.to(torch.bfloat16).float() for update in client_updates(population, MODEL.read())]
    ).mean(0)
    torch.testing.assert_close(MODEL.read() - state.weights, expected, rtol=1e-5, atol=1e-7)
    assert clients == {}


def test_top_k_adds_what_it_left_out_to_the_next_update(population: Population) -> None:
    """Two rounds by hand: the largest third of the update, then of the next one plus the residual of the first."""
    weights, residual = MODEL.read(), torch.zeros(len(population.user_ids), N)
    for round in range(2):
        complete = torch.stack(client_updates(population, weights, round)) + residual[plan_order(population, round)]
        cut = complete.abs().sort(1, descending=True).values[:, math.ceil(N / 3) - 1 : math.ceil(N / 3)]
        received = torch.where(complete.abs() >= cut, complete, 0)
        residual[plan_order(population, round)] = complete - received
        weights = weights - received.mean(0)
    state, clients, _ = run(replace(FEDAVG, compressor=TopK(1 / 3)), population, rounds=2)
    torch.testing.assert_close(state.weights, weights, rtol=1e-5, atol=1e-6)
    for user, client_state in clients.items():
        torch.testing.assert_close(client_state["residual"], residual[user], rtol=1e-4, atol=1e-6)


def plan_order(population: Population, round: int) -> list[int]:
    return [client.user for client in plan_round(FEDAVG, population, 0, round).clients]


def test_int8_rounds_by_seed_round_and_client_only(population: Population) -> None:
    first, _, _ = run(replace(FEDAVG, compressor=Int8()), population, 2)
    second, _, _ = run(replace(FEDAVG, compressor=Int8()), population, 2)
    plain, _, _ = run(FEDAVG, population, 2)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights, plain.weights)
    assert l2_norms(first.weights - plain.weights) < 0.02 * l2_norms(MODEL.read() - plain.weights)


@pytest.mark.parametrize("compressor", [BF16(), Int8(), Int8(100_000), TopK(0.2)], ids=repr)
def test_no_compressed_update_counts_for_more_than_the_clipping_norm(
    population: Population, compressor: Compressor
) -> None:
    """Rounding up makes an update longer, so the decoded update is clipped once more."""
    engine = ReferenceEngine(EngineSetup(MODEL, population, Preprocess(), CPU))
    plan = plan_round(replace(FEDAVG, sampler=UniformSampler(1)), population, 0, 0)
    context = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, clipping_norm=0.01, compressor=compressor)
    actual = engine.train(MODEL.read(), plan, context, {plan.clients[0].client_id: {"residual": torch.full((N,), 3.0)}})
    assert float(l2_norms(actual.update_W)) <= 0.01 * (1 + 1e-6)
    assert actual.norm_K[0] > 1  # with the residual, before clipping
    if compressor.error_feedback:
        assert float(l2_norms(actual.client_states[plan.clients[0].client_id]["residual"])) <= 0.01


@pytest.mark.parametrize("compressor", [Int8(), TopK(0.5)], ids=repr)
def test_personal_layers_are_neither_encoded_nor_counted(population: Population, compressor: Compressor) -> None:
    model = FlatModel(build_model("lenet", 3, size=8, width=4, seed=0))
    algorithm = replace(fedper(head_layers=1, batch_size=3), sampler=AllClients(), compressor=compressor)
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
    assert metrics.bytes_up == len(population.user_ids) * compressor.num_bytes(shared)
    assert metrics.bytes_down == len(population.user_ids) * 4 * shared
    assert {name: len(tensor) for name, tensor in clients[0].items()} == {
        "personal_weights": model.num_shared - shared,
        **({"residual": shared} if compressor.error_feedback else {}),
    }


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (fedavg(), 4 * 100, 4 * 100),
        (fedadam(), 4 * 100, 4 * 100),
        (scaffold(), 4 * 100 + 4 * 90, 4 * 100 + 4 * 90),  # the change of c_k, and c
        (mimelite(), 4 * 100 + 4 * 90, 4 * 100 + 4 * 90),  # a full gradient, and the momentum
        (fedprox(), 4 * 100, 4 * 100),
        (replace(scaffold(), compressor=BF16()), 2 * 100 + 4 * 90, 4 * 100 + 4 * 90),
    ],
)
def test_communication_cost_of_a_client(algorithm: Algorithm, up: int, down: int) -> None:
    """The model has 90 trainable parameters and 10 statistics."""
    assert communication_cost(algorithm, 100, 90) == (up, down)


def test_a_client_without_shared_layers_sends_nothing(population: Population) -> None:
    _, _, metrics = run(replace(local_only(), compressor=TopK(0.1)), population)
    assert (metrics.bytes_up, metrics.bytes_down) == (0, 0)


def test_incompatible_components_are_refused(population: Population) -> None:
    private = replace(FEDAVG, compressor=Int8(), privacy=LocalDP())
    with pytest.raises(ValueError, match="privacy=local adds the clients' noise to the sum, after compression"):
        private.validate(population)
    with pytest.raises(ValueError, match="compressor=int8 needs several clients, and sampler=centralized has one"):
        replace(FEDAVG, sampler=Centralized(), compressor=Int8()).validate(population)
    replace(FEDAVG, compressor=Int8(), privacy=CentralDP(noise_multiplier=1.0, clipping_norm=0.1)).validate(population)
