"""Corrections as users write them, with every kind of state, on every engine: each equals a computation by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.algorithms import fedavg
from manyeyes.components import Ditto, MatchingLayers, ProximalTerm
from manyeyes.core.algorithm import Algorithm, Correction, Engine, PersonalLayers
from manyeyes.core.plan import ClientPlan, RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import ClientStates, CohortResult, MutableClientStates, RoundContext, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models.flat import FlatModel
from tests.engines.gpu_runs import CPU, ENGINES, assert_same
from tests.engines.multiprocess_runs import NEEDS_WORKERS

EVERY = ["reference", pytest.param("multiprocess", marks=NEEDS_WORKERS), "vmap", "cuda_graphs"]
ROUNDS, SEED, LR, CLASSES = 4, 5, 0.05, 3
RNG = np.random.default_rng(0)
OWNERS = np.repeat(np.arange(7), [12, 9, 8, 5, 4, 2, 1])
IMAGES = RNG.integers(0, 256, (len(OWNERS), 4, 4, 3), np.uint8)
LABELS = RNG.integers(0, CLASSES, len(OWNERS))
POPULATION = Population.from_arrays(IMAGES, SingleLabels(LABELS, tuple("abc")), OWNERS)
SEEN = torch.tensor((IMAGES / 255 - 0.5) / 0.25).permute(0, 3, 1, 2).flatten(1)  # channels first, float64
INPUTS = SEEN.shape[1]


@dataclass(frozen=True)
class FedDyn:
    """The client's half of Acar et al. 2021: g + alpha (theta - theta_t) - h; h <- h - alpha (theta_k - theta_t)."""

    alpha: float
    scale = 1.0
    whole = False
    reports = False

    @property
    def pull(self) -> float:
        return self.alpha

    def start(self, theta: Tensor) -> None:
        return None

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor | None:
        return None if own is None else -own

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor, None]:
        return self.alpha * update + (0 if own is None else own), None

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> None:
        return None


@dataclass(frozen=True)
class Mixed:
    """A correction with any mix of state, uploads, the whole gradient and a pull."""

    told: bool
    keeps: bool
    reports: bool
    whole: bool
    pull: float
    scale = 0.8

    def start(self, theta: Tensor) -> Tensor | None:
        return torch.full_like(theta, 0.01) if self.told else None

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor | None:
        if shared is None:
            return None if own is None else -own
        return shared if own is None else shared - own

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        assert (gradient is not None) == self.whole
        slope = update / distance if gradient is None else gradient
        kept = 0.3 * slope + (0 if own is None else 0.5 * own)
        return kept if self.keeps else None, slope if self.reports else None

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> Tensor | None:
        assert (reports is not None) == self.reports
        if shared is None:
            return None
        return 0.5 * shared if reports is None else 0.5 * shared + 0.1 * reports / kept


@dataclass(frozen=True)
class Late(Mixed):
    """Its server state begins with the first uploads."""

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> Tensor | None:
        assert reports is not None
        return 0.1 * reports / kept


@dataclass(frozen=True)
class Remembering(Mixed):
    """A client keeps the server state of the round it takes part in."""

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        return shared, update


@dataclass(frozen=True)
class Unforeseen(Mixed):
    """Shifts by what a client keeps, unless that is what an update of ones leaves."""

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor | None:
        return None if own is None or bool((own == own[0]).all()) else -own


class Heard:
    """An engine, with the sums of uploads that it has returned."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.trained, self.dice = engine, engine.trained, engine.dice
        self.reports: list[Tensor | None] = []

    def personal(self, personal: PersonalLayers) -> Tensor:
        return self.engine.personal(personal)

    def train(self, weights: Tensor, plan: RoundPlan, work: RoundContext, clients: ClientStates) -> CohortResult:
        found: CohortResult = self.engine.train(weights, plan, work, clients)
        self.reports.append(found.uploads_P)
        return found


def algorithm_with(correct: Correction) -> Algorithm:
    """FedAvg with four of seven users a round: new ones and ones that return."""
    return replace(fedavg(cohort_size=4, batch_size=4, epochs=2, lr=LR), correction=correct)


def flat_model() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES)))


@contextmanager
def engine_of(name: str, flat: FlatModel) -> Iterator[Heard]:
    engine = choose_engine(
        name, flat, POPULATION, Preprocess(), CPU, EngineOptions("float32", compile=False, workers=2, num_streams=2)
    )
    try:
        yield Heard(engine)
    finally:
        getattr(engine, "close", lambda: None)()


def game(name: str, algorithm: Algorithm) -> tuple[Tensor, MutableClientStates, list[Tensor | None]]:
    """Weights after some rounds, what clients keep, and each round's sum of uploads."""
    flat = flat_model()
    state, clients = init_state(algorithm, flat.read(), flat.num_trainable), dict[int, dict[str, Tensor]]()
    with engine_of(name, flat) as engine:
        checked: Engine = engine
        for _ in range(ROUNDS):
            state, _ = run_round(algorithm, state, POPULATION, checked, clients, SEED)
    return state.weights, clients, engine.reports


def slope(theta: Tensor, examples: Any) -> Tensor:
    """The gradient of the mean loss of a linear softmax model."""
    leaf = theta.clone().requires_grad_()
    outputs = SEEN[examples] @ leaf[:-CLASSES].view(CLASSES, INPUTS).T + leaf[-CLASSES:]
    return torch.autograd.grad(F.cross_entropy(outputs, torch.tensor(LABELS[examples])), leaf)[0]


def local_training(
    correct: Correction, theta: Tensor, client: ClientPlan, shared: Tensor | None, own: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A client's update, what it keeps and what it uploads."""
    gradient = slope(theta, POPULATION.examples(client.user)) if correct.needs_full_gradient else None
    shift = correct.offset(shared, own)
    here = theta
    for rows in client.example_indices_SB:
        step = correct.gradient_scale * slope(here, rows[rows >= 0]) + correct.proximal_strength * (here - theta)
        here = here - LR * (step if shift is None else step + shift)
    return theta - here, *correct.client_update(shared, own, theta - here, LR * client.num_steps, gradient)


def by_hand(algorithm: Algorithm) -> tuple[Tensor, dict[int, Tensor], list[Tensor | None]]:
    """The same rounds in float64; only who takes part and on which examples is the package's."""
    correct = algorithm.correction
    assert correct is not None
    theta = flat_model().read().double()
    shared, own, sums = correct.init(theta), dict[int, Tensor](), list[Tensor | None]()
    for round in range(ROUNDS):
        clients = plan_round(algorithm, POPULATION, SEED, round).clients
        update, uploads = torch.zeros_like(theta), list[Tensor]()
        for client in clients:
            moved, kept, upload = local_training(correct, theta, client, shared, own.get(client.client_id))
            update += client.num_examples * moved
            own |= {} if kept is None else {client.client_id: kept}
            uploads += [] if upload is None else [upload]
        theta = theta - update / sum(client.num_examples for client in clients)
        sums.append(torch.stack(uploads).sum(0) if uploads else None)
        shared = correct.server_update(shared, sums[-1], len(clients), len(POPULATION.user_ids))
    return theta, own, sums


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert torch.linalg.vector_norm(found - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def assert_as_by_hand(engine: str, correct: Correction) -> None:
    algorithm = algorithm_with(correct)
    first = flat_model().read().double()
    weights, clients, sums = game(engine, algorithm)
    theta, own, uploads = by_hand(algorithm)
    assert_near(weights - first, theta - first)
    assert {key: set(kept) for key, kept in clients.items()} == {key: {CORRECTION_STATE} for key in own}
    for key, kept in own.items():
        assert_near(clients[key][CORRECTION_STATE], kept)
    assert [found is None for found in sums] == [expected is None for expected in uploads]
    for found, expected in zip(sums, uploads, strict=True):
        if found is not None and expected is not None:
            assert_near(found, expected)


@pytest.mark.parametrize("engine", EVERY)
def test_feddyn_equals_a_computation_by_hand(engine: str) -> None:
    assert_as_by_hand(engine, FedDyn(0.1))


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize(("told", "keeps", "reports", "whole"), list(product([False, True], repeat=4)))
@pytest.mark.parametrize("pull", [0.0, 0.2])
def test_every_mix_of_state_equals_a_computation_by_hand(
    engine: str, told: bool, keeps: bool, reports: bool, whole: bool, pull: float
) -> None:
    assert_as_by_hand(engine, Mixed(told, keeps, reports, whole, pull))


@pytest.mark.parametrize("engine", EVERY)
def test_server_state_may_begin_after_the_first_round(engine: str) -> None:
    assert_as_by_hand(engine, Late(told=False, keeps=True, reports=True, whole=False, pull=0.0))


@pytest.mark.parametrize("engine", EVERY)
def test_a_client_may_keep_the_server_state_itself(engine: str) -> None:
    assert_as_by_hand(engine, Remembering(told=True, keeps=True, reports=True, whole=False, pull=0.0))


def test_cohorts_hold_new_clients_and_ones_that_return() -> None:
    """Or the mixes above would not try both side by side."""
    algorithm, seen, mixed = algorithm_with(FedDyn(0.1)), set[int](), False
    for round in range(ROUNDS):
        keys = {client.client_id for client in plan_round(algorithm, POPULATION, SEED, round).clients}
        mixed |= bool(keys & seen) and bool(keys - seen)
        seen |= keys
    assert mixed


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("whole", [False, True])
def test_personal_layers_with_client_state_equal_the_references(engine: str, whole: bool) -> None:
    correct = Mixed(told=False, keeps=True, reports=False, whole=whole, pull=0.1)
    assert_same(
        engine, replace(fedavg(batch_size=8, lr=0.05), correction=correct, personal_layers=MatchingLayers(("fc3.*",)))
    )


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_a_shift_that_could_not_be_foreseen_is_refused(engine: str) -> None:
    correct = Unforeseen(told=False, keeps=True, reports=False, whole=False, pull=0.0)
    with pytest.raises(ValueError, match=r"Unforeseen.shift returns a tensor now .* use engine=reference"):
        game(engine, algorithm_with(correct))


@pytest.mark.parametrize("engine", ["reference", "cuda_graphs"])
@pytest.mark.parametrize(("told", "whole"), [(True, False), (False, True)])
def test_a_model_of_the_clients_own_has_no_server_state(engine: str, told: bool, whole: bool) -> None:
    @dataclass(frozen=True)
    class Tied:
        correct: Correction
        personal: PersonalLayers

    tied = Tied(Mixed(told, keeps=False, reports=False, whole=whole, pull=0.1), Ditto(0.5).personal_layers)
    algorithm = replace(algorithm_with(ProximalTerm(0.1)), personal_model=tied)
    with pytest.raises(ValueError, match=r"algorithm.beside corrects gradients by Mixed"):
        game(engine, algorithm)


@pytest.mark.parametrize("engine", ["reference", "vmap", "cuda_graphs"])
def test_steps_of_a_part_of_the_model_need_personal_layers(engine: str) -> None:
    @dataclass(frozen=True)
    class Alternating:
        inner: Any

        @property
        def batch(self) -> int:
            return int(self.inner.batch)

        def rows(self, held: int, rng: np.random.Generator) -> Any:
            return self.inner.rows(held, rng)

        def size(self, held: int) -> int:
            return int(self.inner.size(held))

        def only(self, steps: int) -> Any:
            return np.arange(steps) % 2 + 1

    algorithm = fedavg(cohort_size=4, batch_size=4, lr=LR)
    with pytest.raises(ValueError, match=r"set algorithm\.personal"):
        game(engine, replace(algorithm, batching=Alternating(algorithm.batching)))


def test_a_model_that_returns_no_tensor_is_named() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(INPUTS, CLASSES)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.fc(images.flatten(1))
            return scores, scores

    flat = FlatModel(Pair())
    weights = flat.read()
    with pytest.raises(ValueError, match="Pair returns a tuple from forward"):
        flat(weights[: flat.num_trainable], weights[flat.num_trainable :], torch.zeros(1, 3, 4, 4))
