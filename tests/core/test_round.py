"""The round: what chance decides in it, what it leaves out, what it refuses, and that every mix plays or is refused."""

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
Store = dict[int, dict[str, Tensor]]


class Brittle(nn.Module):
    """A linear model that answers with nan where an image is all white."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3)
        with torch.no_grad():
            self.fc.weight.copy_(torch.linspace(-0.1, 0.1, 36).view(3, 12))
            self.fc.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        white = (flat > 1.99).all(1, keepdim=True)
        return torch.where(white, float("nan"), self.fc(flat))


def engine(population: Population) -> ReferenceEngine:
    return ReferenceEngine(EngineSetup(FlatModel(Brittle()), population, Preprocess(), torch.device("cpu")))


def run_rounds(
    algorithm: Algorithm, population: Population, rounds: int, clients: Store | None = None
) -> tuple[ServerState, Any]:
    algorithm.validate(population)
    machine = engine(population)
    state, metrics = init_state(algorithm, machine.model.read(), machine.num_trainable), None
    clients = {} if clients is None else clients
    for _ in range(rounds):
        state, metrics = run_round(algorithm, state, population, machine, clients, seed=0)
    return state, metrics


def poisoned(*users: int) -> Population:
    """The same population, the images of some all white."""
    images = IMAGES.copy()
    images[np.isin(OWNERS, users)] = 255
    return replace(POPULATION, images=images)


SAME_SHARES = [  # algorithms whose round over the good clients is the round of a population without the bad one
    replace(fedavg(epochs=2, batch_size=2, lr=0.1), sampler=AllClients()),
    replace(fedavgm(batch_size=2, lr=0.1), sampler=AllClients()),
    replace(fednova(batch_size=2, lr=0.1, momentum=0.5), sampler=AllClients()),
    replace(fedvc(virtual_client_size=3, batch_size=2, lr=0.1), sampler=AllClients()),
    replace(mimelite(batch_size=2, lr=0.1), sampler=AllClients()),
]


@pytest.mark.parametrize("algorithm", SAME_SHARES)
def test_a_client_with_a_nan_update_counts_for_nothing(algorithm: Algorithm) -> None:
    """Everything is keyed by user, so two rounds equal those of a population in which it never was."""
    state, metrics = run_rounds(algorithm, poisoned(2), rounds=2)
    expected, _ = run_rounds(algorithm, POPULATION.filter(OWNERS != 2), rounds=2)
    torch.testing.assert_close(state.weights, expected.weights, rtol=0, atol=1e-7)
    assert metrics.rejected_clients == ("2",)
    assert metrics.num_clients == 4


def test_scaffold_keeps_nothing_of_a_client_with_a_nan_update() -> None:
    """c moves by the changes of the others alone, still over all N users: from c = 0, a quarter of their c_k's sum."""
    clients: Store = {}
    algorithm = replace(scaffold(batch_size=2, lr=0.1), sampler=AllClients())
    state, metrics = run_rounds(algorithm, poisoned(2), 1, clients)
    assert sorted(clients) == [0, 1, 3]
    torch.testing.assert_close(state.correction_state, sum(clients[k]["control"] for k in (0, 1, 3)) / 4)
    alone, _ = run_rounds(algorithm, POPULATION.filter(OWNERS != 2), 1)
    torch.testing.assert_close(state.weights, alone.weights, rtol=0, atol=1e-7)
    assert metrics.rejected_clients == ("2",)


def test_no_finite_update_at_all_is_divergence() -> None:
    with pytest.raises(DivergenceError, match="round 1"):
        run_rounds(replace(fedavg(batch_size=2), sampler=AllClients()), poisoned(0, 1, 2, 3), rounds=1)


@pytest.mark.parametrize("make", [scaffold, fedavg])
def test_weights_that_leave_the_finite_numbers_change_no_state(make: Any) -> None:
    clients: Store = {}
    algorithm = replace(make(batch_size=2, lr=0.1), sampler=AllClients(), personal_layers=MatchingLayers(("fc.bias",)))
    state, _ = run_rounds(algorithm, POPULATION, 1, clients)
    weights = state.weights.clone()
    before = {key: {name: tensor.clone() for name, tensor in own.items()} for key, own in clients.items()}
    bursting = replace(
        algorithm, client_optimizer=SGD(1e3), server_optimizer=ServerSGD(lr=3e38)
    )  # updates above 1.2 overflow
    with pytest.raises(DivergenceError, match="round 2 are no longer finite"):
        run_round(bursting, state, POPULATION, engine(POPULATION), clients, seed=0)
    assert torch.equal(state.weights, weights)
    assert {key: set(own) for key, own in clients.items()} == {key: set(own) for key, own in before.items()}
    assert all(torch.equal(clients[key][name], tensor) for key, own in before.items() for name, tensor in own.items())


def test_personal_weights_that_are_not_finite_are_not_kept() -> None:
    clients: Store = {}
    with pytest.raises(DivergenceError):
        run_rounds(local_only(batch_size=8, lr=1e38, weight_decay=1e3), POPULATION, 1, clients)  # one step, finite loss
    assert not clients


def test_a_client_whose_own_model_is_not_finite_is_named_and_its_update_counts() -> None:
    """Each step multiplies the distance to the server's weights by 1e19: only user 0 takes a third one."""
    algorithm, clients = replace(ditto(lam=1e20, batch_size=2, lr=0.1), sampler=AllClients()), Store()
    state, metrics = run_rounds(algorithm, POPULATION, 1, clients)
    plain, _ = run_rounds(replace(fedavg(batch_size=2, lr=0.1), sampler=AllClients()), POPULATION, 1)
    assert torch.equal(state.weights, plain.weights)
    assert sorted(clients) == [1, 2, 3]
    assert metrics.rejected_clients == ("0",)
    assert metrics.rejection_reasons == {"0": "the personal model of user 0 was not finite and is discarded"}
    _, both = run_rounds(algorithm, poisoned(2), 1)
    assert (both.rejected_clients, set(both.rejection_reasons)) == (
        ("2", "0"),
        {"0"},
    )  # whose update was left out too is named once
    privacy = CentralDP(noise_multiplier=1e-6, epsilon=0).calibrate(algorithm, POPULATION, 1)
    _, hidden = run_rounds(replace(algorithm, client_weighting=WeightUniformly(), privacy=privacy), POPULATION, 1)
    assert (hidden.rejected_clients, hidden.rejection_reasons) == (("(private)",), {})


def test_mime_lives_with_a_client_whose_examples_weigh_nothing() -> None:
    algorithm = replace(
        mimelite(batch_size=2), sampler=AllClients(), example_weighting=ImportanceReweighting((0.0, 0.5, 0.5))
    )
    state, _ = run_rounds(algorithm, POPULATION, 1)  # user 3 holds a single "a"
    assert torch.isfinite(state.correction_state).all()


def test_scaffold_survives_the_end_of_its_schedule() -> None:
    local = SGD(0.1, schedule=Schedule("cosine", rounds=1))
    state, _ = run_rounds(replace(scaffold(cohort_size=2, batch_size=2), client_optimizer=local), POPULATION, 2)
    assert torch.isfinite(state.correction_state).all()


COHORTS = [UniformSampler(2), SizeWeightedSampler(2), AllClients(), Centralized()]
CORRECTIONS = [None, ProximalTerm(0.1), ScaffoldCorrection(), MimeLiteMomentum()]
REST = {
    "batching": [EpochBatching(1, 3, max_examples=4), VirtualClientBatching(3, 2)],
    "client_optimizer": [SGD(0.1), SGD(0.1, momentum=0.5, persist_state=True), Adam(0.01)],
    "client_weighting": [WeightByExamples(), WeightUniformly(), FedNovaWeighting()],
    "server_optimizer": [ServerSGD(), ServerSGD(momentum=0.9), AdaptiveServer("yogi")],
    "example_weighting": [None, ImportanceReweighting()],
    "personal_layers": [None, MatchingLayers(("fc.bias",))],
}


def meaningless(mix: Algorithm) -> bool:
    """The mixes that a reader of the papers would not accept."""
    adam, momentum = isinstance(mix.client_optimizer, Adam), getattr(mix.client_optimizer, "momentum", 0) > 0
    plain_server = isinstance(mix.server_optimizer, ServerSGD) and not mix.server_optimizer.momentum
    if isinstance(mix.sampler, Centralized) and (mix.correction or mix.personal_layers):
        return True
    if isinstance(mix.client_weighting, FedNovaWeighting) and (
        adam or momentum
    ):  # the momentum here is kept between rounds
        return True
    if isinstance(mix.correction, ScaffoldCorrection):
        return adam or momentum
    if isinstance(mix.correction, MimeLiteMomentum):
        return adam or momentum or not plain_server or mix.personal_layers is not None
    return False


@pytest.mark.parametrize("cohort", COHORTS)
@pytest.mark.parametrize("correct", CORRECTIONS)
def test_every_mix_plays_a_finite_round_or_is_refused_in_a_sentence(cohort: Any, correct: Any) -> None:
    population = POPULATION.pooled() if isinstance(cohort, Centralized) else POPULATION
    machine = engine(population)
    weights = machine.model.read()
    for parts in product(*REST.values()):
        mix = Algorithm(sampler=cohort, correction=correct, **dict(zip(REST, parts, strict=True)))
        if meaningless(mix):
            with pytest.raises(ValueError, match=r"^\S[^\n]*[^.\s]$") as refusal:
                mix.validate(population)
            assert ". " not in str(refusal.value)
            continue
        mix.validate(population)
        state, metrics = run_round(
            mix, init_state(mix, weights, machine.num_trainable), population, machine, {}, seed=0
        )
        assert torch.isfinite(state.weights).all(), mix
        assert not metrics.rejected_clients, mix


def test_importance_weights_on_several_labels_are_refused() -> None:
    tagged = replace(POPULATION, labels=MultiLabels.from_lists([[0]] * 12, ("a", "b", "c")))
    with pytest.raises(ValueError, match="one class per image"):
        fedir(cohort_size=2).validate(tagged)


def test_every_named_algorithm_starts_from_its_defaults() -> None:
    labels = SingleLabels(np.zeros(20, np.int64), ("a", "b", "c"))
    population = Population.from_arrays(np.zeros((20, 2, 2, 3), np.uint8), labels, np.repeat(np.arange(10), 2))
    for name, make in NAMED_ALGORITHMS.items():
        make().validate(population.pooled() if name == "centralized" else population)


def test_a_personal_pattern_without_a_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer of the model matches"):
        run_rounds(replace(fedavg(cohort_size=2), personal_layers=MatchingLayers(("head.*",))), POPULATION, 1)


def same(one: ClientPlan, other: ClientPlan, population: Population, others: Population) -> bool:
    """Whether two clients train on the same images with the same weights and uniforms."""
    real = one.example_indices_SB >= 0
    return (
        np.array_equal(real, other.example_indices_SB >= 0)
        and np.array_equal(
            population.image_indices[one.example_indices_SB[real]], others.image_indices[other.example_indices_SB[real]]
        )
        and np.array_equal(one.example_weights_SB, other.example_weights_SB)
        and np.array_equal(one.augment_uniforms_SBD, other.augment_uniforms_SBD)
    )


MIXES = st.sampled_from(
    [
        fedavg(cohort_size=2, epochs=2, batch_size=2),
        fedvc(cohort_size=2, virtual_client_size=3, batch_size=2),
        fedir((0.2, 0.3, 0.5), cohort_size=2, batch_size=2),
    ]
)


@settings(deadline=None, max_examples=30)
@given(MIXES, st.integers(0, 99), st.integers(0, 50))
def test_a_round_planned_alone_equals_one_planned_after_others(algorithm: Algorithm, seed: int, round: int) -> None:
    alone = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4)
    np.random.seed(seed)  # noqa: NPY002
    for other in range(3):
        plan_round(algorithm, POPULATION, seed, other, num_augment_uniforms=4)
    again = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4)
    assert [c.user for c in alone.clients] == [c.user for c in again.clients]
    assert all(same(a, b, POPULATION, POPULATION) for a, b in zip(alone.clients, again.clients, strict=True))


@settings(deadline=None, max_examples=30)
@given(MIXES, st.integers(0, 99), st.integers(0, 50), st.sets(st.integers(0, 3), min_size=1))
def test_what_a_user_draws_does_not_depend_on_who_else_is_there(
    algorithm: Algorithm, seed: int, round: int, present: set[int]
) -> None:
    all_clients = replace(algorithm, sampler=AllClients())
    view = POPULATION.filter(np.isin(OWNERS, list(present)))
    whole = {c.client_id: c for c in plan_round(all_clients, POPULATION, seed, round, num_augment_uniforms=4).clients}
    some = {c.client_id: c for c in plan_round(all_clients, view, seed, round, num_augment_uniforms=4).clients}
    assert set(some) == present
    assert all(same(whole[key], some[key], POPULATION, view) for key in present)
    chosen = plan_round(algorithm, POPULATION, seed, round, num_augment_uniforms=4).clients
    assert all(same(whole[c.client_id], c, POPULATION, POPULATION) for c in chosen)


def test_rounds_users_and_seeds_draw_differently() -> None:
    population = Population.from_arrays(IMAGES, POPULATION.labels, np.repeat([0, 1], 6))
    all_clients = replace(fedavg(batch_size=6), sampler=AllClients())
    orders = [
        tuple(client.example_indices_SB.ravel() % 6)
        for seed, round in [(0, 0), (0, 1), (1, 0)]
        for client in plan_round(all_clients, population, seed, round).clients
    ]
    assert len(set(orders)) == 6
