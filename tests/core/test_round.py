"""The round: rejected clients, refused combinations, and what its random choices depend on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from manyeyes.algorithms import (
    NAMED_ALGORITHMS,
    ditto,
    fedavg,
    fedavgm,
    fedir,
    fednova,
    fedvc,
    local_only,
    mimelite,
    scaffold,
)
from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    AllClients,
    Centralized,
    EpochBatching,
    FedNovaWeighting,
    ImportanceReweighting,
    MatchingLayers,
    MimeLiteMomentum,
    ProximalTerm,
    ScaffoldCorrection,
    Schedule,
    ServerSGD,
    SizeWeightedSampler,
    UniformSampler,
    VirtualClientBatching,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import ClientPlan, plan_round
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP

SIZES = (5, 2, 4, 1)
OWNERS = np.repeat(np.arange(4), SIZES)
LABELS = np.array([0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 2, 0])
IMAGES = np.random.default_rng(0).integers(0, 200, (12, 2, 2, 3), dtype=np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(LABELS, ("a", "b", "c")), OWNERS)
States = dict[int, dict[str, Tensor]]


class NanOnWhite(nn.Module):
    """A linear model that returns NaN for images that are all white."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3)
        with torch.no_grad():
            self.fc.weight.copy_(torch.linspace(-0.1, 0.1, 36).view(3, 12))
            self.fc.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        is_white = (flat > 1.99).all(1, keepdim=True)
        return torch.where(is_white, float("nan"), self.fc(flat))


def make_engine(population: Population) -> ReferenceEngine:
    return ReferenceEngine(EngineSetup(FlatModel(NanOnWhite()), population, Preprocess(), torch.device("cpu")))


def run_rounds(
    algorithm: Algorithm, population: Population, rounds: int, clients: States | None = None
) -> tuple[ServerState, Any]:
    algorithm.validate(population)
    engine = make_engine(population)
    state, metrics = init_state(algorithm, engine.model.read(), engine.num_trainable), None
    clients = {} if clients is None else clients
    for _ in range(rounds):
        state, metrics = run_round(algorithm, state, population, engine, clients, seed=0)
    return state, metrics


def with_white_images(*users: int) -> Population:
    """Return the same population, with the images of some users all white."""
    images = IMAGES.copy()
    images[np.isin(OWNERS, users)] = 255
    return replace(POPULATION, images=images)


WEIGHTED_MEANS = [  # a round over the accepted clients is the round of a population without the rejected one
    replace(fedavg(epochs=2, batch_size=2, lr=0.1), sampler=AllClients()),
    replace(fedavgm(batch_size=2, lr=0.1), sampler=AllClients()),
    replace(fednova(batch_size=2, lr=0.1, momentum=0.5), sampler=AllClients()),
    replace(fedvc(virtual_client_size=3, batch_size=2, lr=0.1), sampler=AllClients()),
    replace(mimelite(batch_size=2, lr=0.1), sampler=AllClients()),
]


@pytest.mark.parametrize("algorithm", WEIGHTED_MEANS)
def test_a_client_with_a_nan_update_is_rejected(algorithm: Algorithm) -> None:
    """Random streams are keyed by client, so the rounds equal those of a population without that client."""
    state, metrics = run_rounds(algorithm, with_white_images(2), rounds=2)
    expected, _ = run_rounds(algorithm, POPULATION.filter(OWNERS != 2), rounds=2)
    torch.testing.assert_close(state.weights, expected.weights, rtol=0, atol=1e-7)
    assert metrics.rejected_clients == ("2",)
    assert metrics.num_clients == 4


def test_scaffold_ignores_a_client_with_a_nan_update() -> None:
    """c changes by the sum of the other clients' changes over all N users: from 0 to a quarter of the sum of their c_k."""
    clients: States = {}
    algorithm = replace(scaffold(batch_size=2, lr=0.1), sampler=AllClients())
    state, metrics = run_rounds(algorithm, with_white_images(2), 1, clients)
    assert sorted(clients) == [0, 1, 3]
    torch.testing.assert_close(state.correction_state, sum(clients[k]["correction"] for k in (0, 1, 3)) / 4)
    without_client, _ = run_rounds(algorithm, POPULATION.filter(OWNERS != 2), 1)
    torch.testing.assert_close(state.weights, without_client.weights, rtol=0, atol=1e-7)
    assert metrics.rejected_clients == ("2",)


def test_a_round_without_finite_updates_is_divergence() -> None:
    with pytest.raises(DivergenceError, match="round 1"):
        run_rounds(replace(fedavg(batch_size=2), sampler=AllClients()), with_white_images(0, 1, 2, 3), rounds=1)


@pytest.mark.parametrize("make", [scaffold, fedavg])
def test_weights_that_overflow_change_no_state(make: Any) -> None:
    clients: States = {}
    algorithm = replace(make(batch_size=2, lr=0.1), sampler=AllClients(), personal_layers=MatchingLayers(("fc.bias",)))
    state, _ = run_rounds(algorithm, POPULATION, 1, clients)
    weights = state.weights.clone()
    before = {
        key: {name: tensor.clone() for name, tensor in client_state.items()} for key, client_state in clients.items()
    }
    overflowing = replace(
        algorithm, client_optimizer=SGD(1e3), server_optimizer=ServerSGD(lr=3e38)
    )  # updates above 1.2 overflow
    with pytest.raises(DivergenceError, match="round 2 are no longer finite"):
        run_round(overflowing, state, POPULATION, make_engine(POPULATION), clients, seed=0)
    assert torch.equal(state.weights, weights)
    assert {key: set(client_state) for key, client_state in clients.items()} == {
        key: set(client_state) for key, client_state in before.items()
    }
    assert all(
        torch.equal(clients[key][name], tensor)
        for key, client_state in before.items()
        for name, tensor in client_state.items()
    )


def test_personal_weights_that_are_not_finite_are_not_stored() -> None:
    clients: States = {}
    with pytest.raises(DivergenceError):
        run_rounds(local_only(batch_size=8, lr=1e38, weight_decay=1e3), POPULATION, 1, clients)  # one step, finite loss
    assert not clients


def test_a_client_with_a_non_finite_personal_model_is_named_and_its_update_counts() -> None:
    """Each step multiplies the distance to the server's weights by 1e19: only user 0 takes a third a."""
    algorithm, clients = replace(ditto(lam=1e20, batch_size=2, lr=0.1), sampler=AllClients()), States()
    state, metrics = run_rounds(algorithm, POPULATION, 1, clients)
    plain, _ = run_rounds(replace(fedavg(batch_size=2, lr=0.1), sampler=AllClients()), POPULATION, 1)
    assert torch.equal(state.weights, plain.weights)
    assert sorted(clients) == [1, 2, 3]
    assert metrics.rejected_clients == ("0",)
    assert metrics.rejection_reasons == {"0": "the personal model of user 0 was not finite and is discarded"}
    _, both = run_rounds(algorithm, with_white_images(2), 1)
    assert (both.rejected_clients, set(both.rejection_reasons)) == (
        ("2", "0"),
        {"0"},
    )  # a client whose update was rejected too is named once
    privacy = CentralDP(noise_multiplier=1e-6, epsilon=0).calibrate(algorithm, POPULATION, 1)
    _, hidden = run_rounds(replace(algorithm, client_weighting=WeightUniformly(), privacy=privacy), POPULATION, 1)
    assert (hidden.rejected_clients, hidden.rejection_reasons) == (("(private)",), {})


def test_mimelite_accepts_a_client_whose_examples_have_weight_0() -> None:
    algorithm = replace(
        mimelite(batch_size=2), sampler=AllClients(), example_weighting=ImportanceReweighting((0.0, 0.5, 0.5))
    )
    state, _ = run_rounds(algorithm, POPULATION, 1)  # user 3 has a single "a"
    assert state.correction_state is not None
    assert torch.isfinite(state.correction_state).all()


def test_scaffold_works_after_the_end_of_its_schedule() -> None:
    optimizer = SGD(0.1, schedule=Schedule("cosine", rounds=1))
    state, _ = run_rounds(replace(scaffold(cohort_size=2, batch_size=2), client_optimizer=optimizer), POPULATION, 2)
    assert state.correction_state is not None
    assert torch.isfinite(state.correction_state).all()


SAMPLERS = [
    UniformSampler(2),
    *(pytest.param(s, marks=pytest.mark.slow) for s in (SizeWeightedSampler(2), AllClients(), Centralized())),
]
CORRECTIONS = [None, ProximalTerm(0.1), ScaffoldCorrection(), MimeLiteMomentum()]
REMAINING_SLOTS: dict[str, list[Any]] = {
    "batching": [EpochBatching(1, 3, max_examples=4), VirtualClientBatching(3, 2)],
    "client_optimizer": [SGD(0.1), SGD(0.1, momentum=0.5, persist_state=True), Adam(0.01)],
    "client_weighting": [WeightByExamples(), WeightUniformly(), FedNovaWeighting()],
    "server_optimizer": [ServerSGD(), ServerSGD(momentum=0.9), AdaptiveServer("yogi")],
    "example_weighting": [None, ImportanceReweighting()],
    "personal_layers": [None, MatchingLayers(("fc.bias",))],
}


def is_invalid(algorithm: Algorithm) -> bool:
    """Return whether the combination contradicts the papers of its components."""
    adam, momentum = (
        isinstance(algorithm.client_optimizer, Adam),
        getattr(algorithm.client_optimizer, "momentum", 0) > 0,
    )
    plain_server = isinstance(algorithm.server_optimizer, ServerSGD) and not algorithm.server_optimizer.momentum
    if isinstance(algorithm.sampler, Centralized) and (algorithm.correction or algorithm.personal_layers):
        return True
    if isinstance(algorithm.client_weighting, FedNovaWeighting) and (
        adam or momentum
    ):  # the momentum here persists between rounds
        return True
    if isinstance(algorithm.correction, ScaffoldCorrection):
        return adam or momentum
    if isinstance(algorithm.correction, MimeLiteMomentum):
        return adam or momentum or not plain_server or algorithm.personal_layers is not None
    return False


@pytest.mark.fast_cases("correction2-sampler0")
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_combination_trains_or_is_refused_in_one_sentence(sampler: Any, correction: Any) -> None:
    population = POPULATION.pooled() if isinstance(sampler, Centralized) else POPULATION
    engine = make_engine(population)
    weights = engine.model.read()
    for components in product(*REMAINING_SLOTS.values()):
        algorithm = Algorithm(
            sampler=sampler, correction=correction, **dict(zip(REMAINING_SLOTS, components, strict=True))
        )
        if is_invalid(algorithm):
            with pytest.raises(ValueError, match=r"^\S[^\n]*[^.\s]$") as refusal:
                algorithm.validate(population)
            assert ". " not in str(refusal.value)
            continue
        algorithm.validate(population)
        state, metrics = run_round(
            algorithm, init_state(algorithm, weights, engine.num_trainable), population, engine, {}, seed=0
        )
        assert torch.isfinite(state.weights).all(), algorithm
        assert not metrics.rejected_clients, algorithm


def test_importance_weights_on_several_labels_are_refused() -> None:
    multi_label = replace(POPULATION, labels=MultiLabels.from_lists([[0]] * 12, ("a", "b", "c")))
    with pytest.raises(ValueError, match="one class per image"):
        fedir(cohort_size=2).validate(multi_label)


def test_every_named_algorithm_is_valid_by_default() -> None:
    labels = SingleLabels(np.zeros(20, np.int64), ("a", "b", "c"))
    population = Population.from_arrays(np.zeros((20, 2, 2, 3), np.uint8), labels, np.repeat(np.arange(10), 2))
    for name, make in NAMED_ALGORITHMS.items():
        make().validate(population.pooled() if name == "centralized" else population)


def test_a_personal_pattern_without_a_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer of the model matches"):
        run_rounds(replace(fedavg(cohort_size=2), personal_layers=MatchingLayers(("head.*",))), POPULATION, 1)


def trains_the_same(a: ClientPlan, b: ClientPlan, population_a: Population, population_b: Population) -> bool:
    """Return whether two clients train on the same images with the same weights and uniforms."""
    is_real = a.example_indices_SB >= 0
    return (
        np.array_equal(is_real, b.example_indices_SB >= 0)
        and np.array_equal(
            population_a.image_indices[a.example_indices_SB[is_real]],
            population_b.image_indices[b.example_indices_SB[is_real]],
        )
        and np.array_equal(a.example_weights_SB, b.example_weights_SB)
        and np.array_equal(np.asarray(a.augment_uniforms_SBD), np.asarray(b.augment_uniforms_SBD))
    )


ALGORITHMS = st.sampled_from(
    [
        fedavg(cohort_size=2, epochs=2, batch_size=2),
        fedvc(cohort_size=2, virtual_client_size=3, batch_size=2),
        fedir((0.2, 0.3, 0.5), cohort_size=2, batch_size=2),
    ]
)


@settings(deadline=None, max_examples=30)
@given(ALGORITHMS, st.integers(0, 99), st.integers(0, 50))
def test_a_plan_does_not_depend_on_earlier_plans(algorithm: Algorithm, seed: int, round: int) -> None:
    first = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4)
    np.random.seed(seed)  # noqa: NPY002
    for earlier_round in range(3):
        plan_round(algorithm, POPULATION, seed, earlier_round, num_augment_uniforms=4)
    second = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4)
    assert [c.user for c in first.clients] == [c.user for c in second.clients]
    assert all(
        trains_the_same(a, b, POPULATION, POPULATION) for a, b in zip(first.clients, second.clients, strict=True)
    )


@settings(deadline=None, max_examples=30)
@given(ALGORITHMS, st.integers(0, 99), st.integers(0, 50), st.sets(st.integers(0, 3), min_size=1))
def test_the_plan_of_a_client_does_not_depend_on_other_clients(
    algorithm: Algorithm, seed: int, round: int, present: set[int]
) -> None:
    all_clients = replace(algorithm, sampler=AllClients())
    view = POPULATION.filter(np.isin(OWNERS, list(present)))
    full = {c.client_id: c for c in plan_round(all_clients, POPULATION, seed, round, num_augment_uniforms=4).clients}
    partial = {c.client_id: c for c in plan_round(all_clients, view, seed, round, num_augment_uniforms=4).clients}
    assert set(partial) == present
    assert all(trains_the_same(full[key], partial[key], POPULATION, view) for key in present)
    sampled = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4).clients
    assert all(trains_the_same(full[c.client_id], c, POPULATION, POPULATION) for c in sampled)


def test_rounds_users_and_seeds_have_different_plans() -> None:
    population = Population.from_arrays(IMAGES, POPULATION.labels, np.repeat([0, 1], 6))
    all_clients = replace(fedavg(batch_size=6), sampler=AllClients())
    orders = [
        tuple(client.example_indices_SB.ravel() % 6)
        for seed, round in [(0, 0), (0, 1), (1, 0)]
        for client in plan_round(all_clients, population, seed, round).clients
    ]
    assert len(set(orders)) == 6


def test_a_component_without_a_method_of_its_slot_is_refused_before_round_1(population: Population) -> None:
    class NoStep:
        def init(self, theta: Tensor) -> dict[str, Tensor]:
            return {}

    server: Any = NoStep()
    with pytest.raises(ValueError, match="server_optimizer=NoStep has no step: add it"):
        replace(fedavg(cohort_size=2), server_optimizer=server).validate(population)
