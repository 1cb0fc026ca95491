"""Corrections as users write them, with every kind of state, on every engine: each equals a computation in float64."""

from __future__ import annotations

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
from manyeyes.core.algorithm import Algorithm, Batching, Correction, PersonalLayers, ServerStep
from manyeyes.core.plan import ClientPlan, plan_round
from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.state import CORRECTION_STATE, CohortResult, MutableClientStates
from manyeyes.engines.base import EngineBase
from manyeyes.engines.select import choose_engine
from manyeyes.models.flat import FlatModel
from tests.engines.engine_runs import initial_state, make_setup, run_rounds
from tests.engines.gpu_runs import ENGINE_PARAMS, assert_equals_reference
from tests.engines.multiprocess_runs import NEEDS_WORKERS

ENGINE_NAMES = ["reference", pytest.param("multiprocess", marks=NEEDS_WORKERS), "vmap", "cuda_graphs"]
ROUNDS, SEED, LR, NUM_CLASSES = 4, 5, 0.05, 3
RNG = np.random.default_rng(0)
OWNERS = np.repeat(np.arange(7), [12, 9, 8, 5, 4, 2, 1])
IMAGES = RNG.integers(0, 256, (len(OWNERS), 4, 4, 3), np.uint8)
LABELS = RNG.integers(0, NUM_CLASSES, len(OWNERS))
POPULATION = Population.from_arrays(IMAGES, SingleLabels(LABELS, tuple("abc")), OWNERS)
INPUTS = torch.tensor((IMAGES / 255 - 0.5) / 0.25).permute(0, 3, 1, 2).flatten(1)  # channels first, float64
NUM_INPUTS = INPUTS.shape[1]


@dataclass(frozen=True)
class ClientFedDyn:
    """The clients' half of FedDyn (Acar et al. 2021), without server state.

    The gradient is g + alpha (theta - theta_t) - h, and a client keeps h <- h - alpha (theta_k - theta_t).
    """

    alpha: float
    gradient_scale = 1.0
    needs_full_gradient = False
    uploads = False
    downloads = False

    @property
    def proximal_strength(self) -> float:
        return self.alpha

    def init(self, theta: Tensor) -> None:
        return None

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor | None:
        return None if client_state is None else -client_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor, None]:
        return self.alpha * update + (0 if client_state is None else client_state), None

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[None, Tensor]:
        return None, step.theta_after


@dataclass(frozen=True)
class MixedCorrection:
    """A correction with any mix of server state, client state, uploads, a full gradient and a proximal term."""

    downloads: bool  # has server state
    has_client_state: bool
    uploads: bool
    needs_full_gradient: bool
    proximal_strength: float
    gradient_scale = 0.8

    def init(self, theta: Tensor) -> Tensor | None:
        return torch.full_like(theta, 0.01) if self.downloads else None

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor | None:
        if correction_state is None:
            return None if client_state is None else -client_state
        return correction_state if client_state is None else correction_state - client_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        assert (full_gradient is not None) == self.needs_full_gradient
        gradient = update / steps_times_lr if full_gradient is None else full_gradient
        new_state = 0.3 * gradient + (0 if client_state is None else 0.5 * client_state)
        return new_state if self.has_client_state else None, gradient if self.uploads else None

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor | None, Tensor]:
        assert (step.uploads is not None) == self.uploads
        if correction_state is None:
            return None, step.theta_after
        uploads = 0 if step.uploads is None else 0.1 * step.uploads / step.num_accepted
        return 0.5 * correction_state + uploads, step.theta_after


@dataclass(frozen=True)
class LateServerState(MixedCorrection):
    """Its server state begins with the first uploads."""

    def init(self, theta: Tensor) -> None:
        return None

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor | None, Tensor]:
        assert step.uploads is not None
        return 0.1 * step.uploads / step.num_accepted, step.theta_after


@dataclass(frozen=True)
class KeepsServerState(MixedCorrection):
    """A client keeps the server state of the round that it takes part in."""

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        return correction_state, update


@dataclass(frozen=True)
class UnexpectedOffset(MixedCorrection):
    """Has no offset for the client state that an update of ones leaves, and one for all others."""

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor | None:
        return None if client_state is None or bool((client_state == client_state[0]).all()) else -client_state


class RecordingEngine:
    """An engine that records the sums of uploads that it returns."""

    def __init__(self, engine: EngineBase) -> None:
        self.engine = engine
        self.uploads: list[Tensor | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def train(self, *args: Any) -> CohortResult:
        result = self.engine.train(*args)
        self.uploads.append(result.uploads_P)
        return result


def algorithm_with(correction: Correction) -> Algorithm:
    """Return FedAvg with four of seven users per round: new ones and ones that return."""
    return replace(fedavg(cohort_size=4, batch_size=4, epochs=2, lr=LR), correction=correction)


def make_model() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(NUM_INPUTS, NUM_CLASSES)))


def train_on(engine_name: str, algorithm: Algorithm) -> tuple[Tensor, MutableClientStates, list[Tensor | None]]:
    """Return the weights after all rounds, the clients' states, and each round's sum of uploads."""
    model = make_model()
    setup = make_setup(model, POPULATION, engine=engine_name, workers=2, num_streams=2)
    with choose_engine(algorithm, setup) as engine:
        recording: Any = RecordingEngine(engine)
        first = initial_state(algorithm, model)
        state, client_states, _ = run_rounds(algorithm, recording, POPULATION, first, ROUNDS, SEED)
    return state.weights, client_states, recording.uploads


def mean_gradient(theta: Tensor, examples: Ints) -> Tensor:
    """Return the gradient of the mean loss of a linear softmax model."""
    leaf = theta.clone().requires_grad_()
    outputs = INPUTS[examples] @ leaf[:-NUM_CLASSES].view(NUM_CLASSES, NUM_INPUTS).T + leaf[-NUM_CLASSES:]
    return torch.autograd.grad(F.cross_entropy(outputs, torch.tensor(LABELS[examples])), leaf)[0]


def expected_client_training(
    correction: Correction,
    theta_t: Tensor,
    client: ClientPlan,
    correction_state: Tensor | None,
    client_state: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return a client's update, its new state and its upload."""
    needs_full_gradient = correction.needs_full_gradient
    full_gradient = mean_gradient(theta_t, POPULATION.examples(client.user)) if needs_full_gradient else None
    offset = correction.offset(correction_state, client_state)
    theta = theta_t
    for indices_B in client.example_indices_SB:
        gradient = correction.gradient_scale * mean_gradient(theta, indices_B[indices_B >= 0])
        gradient = gradient + correction.proximal_strength * (theta - theta_t)
        theta = theta - LR * (gradient if offset is None else gradient + offset)
    update = theta_t - theta
    return update, *correction.client_update(
        correction_state, client_state, update, LR * client.num_steps, full_gradient
    )


def expected_training(algorithm: Algorithm) -> tuple[Tensor, dict[int, Tensor], list[Tensor | None]]:
    """Compute the same rounds in float64; only the cohorts and batches are those of the package."""
    correction = algorithm.correction
    assert correction is not None
    theta = make_model().read().double()
    correction_state = correction.init(theta)
    client_states: dict[int, Tensor] = {}
    upload_sums: list[Tensor | None] = []
    for round in range(ROUNDS):
        clients = plan_round(algorithm, POPULATION, SEED, round).clients
        update, uploads = torch.zeros_like(theta), list[Tensor]()
        for client in clients:
            client_update, client_state, upload = expected_client_training(
                correction, theta, client, correction_state, client_states.get(client.client_id)
            )
            update += client.num_examples * client_update
            client_states |= {} if client_state is None else {client.client_id: client_state}
            uploads += [] if upload is None else [upload]
        update /= sum(client.num_examples for client in clients)
        upload_sums.append(torch.stack(uploads).sum(0) if uploads else None)
        step = ServerStep(
            theta_before=theta,
            theta_after=theta - update,
            update=update,
            uploads=upload_sums[-1],
            num_sampled=len(clients),
            num_accepted=len(clients),
            num_clients=len(POPULATION.user_ids),
        )
        correction_state, theta = correction.server_update(correction_state, step)
    return theta, client_states, upload_sums


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert torch.linalg.vector_norm(actual - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def assert_as_expected(engine: str, correction: Correction) -> None:
    algorithm = algorithm_with(correction)
    first = make_model().read().double()
    weights, client_states, uploads = train_on(engine, algorithm)
    expected_theta, expected_states, expected_uploads = expected_training(algorithm)
    assert_close(weights - first, expected_theta - first)
    assert {k: set(state) for k, state in client_states.items()} == {k: {CORRECTION_STATE} for k in expected_states}
    for client_id, state in expected_states.items():
        assert_close(client_states[client_id][CORRECTION_STATE], state)
    for actual, expected in zip(uploads, expected_uploads, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None and expected is not None:
            assert_close(actual, expected)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_correction_with_client_state_only(engine: str) -> None:
    assert_as_expected(engine, ClientFedDyn(0.1))


MIXES = [  # half of them are slow tests
    pytest.param(*mix, marks=pytest.mark.slow if sum(mix) % 2 else ()) for mix in product([False, True], repeat=4)
]


@pytest.mark.fast_cases("reference", "True-True-True-True-cuda_graphs", "True-True-True-True-multiprocess")
@pytest.mark.parametrize("engine", [*ENGINE_NAMES[:2], pytest.param("vmap", marks=pytest.mark.slow), ENGINE_NAMES[3]])
@pytest.mark.parametrize(("downloads", "has_client_state", "uploads", "needs_full_gradient"), MIXES)
@pytest.mark.parametrize("proximal_strength", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_every_mix_of_states(
    engine: str,
    downloads: bool,
    has_client_state: bool,
    uploads: bool,
    needs_full_gradient: bool,
    proximal_strength: float,
) -> None:
    assert_as_expected(
        engine, MixedCorrection(downloads, has_client_state, uploads, needs_full_gradient, proximal_strength)
    )


@pytest.mark.fast_cases("reference", "vmap")
@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("correction_class", [LateServerState, KeepsServerState])
def test_server_state_that_begins_later_or_that_clients_keep(
    engine: str, correction_class: type[MixedCorrection]
) -> None:
    assert_as_expected(engine, correction_class(True, True, True, needs_full_gradient=False, proximal_strength=0.0))


def test_cohorts_contain_new_clients_and_ones_that_return() -> None:
    """Otherwise the tests above would not have both side by side."""
    algorithm, seen, has_both = algorithm_with(ClientFedDyn(0.1)), set[int](), False
    for round in range(ROUNDS):
        client_ids = {client.client_id for client in plan_round(algorithm, POPULATION, SEED, round).clients}
        has_both |= bool(client_ids & seen) and bool(client_ids - seen)
        seen |= client_ids
    assert has_both


@pytest.mark.parametrize("engine", ENGINE_PARAMS)
@pytest.mark.parametrize("needs_full_gradient", [False, True])
def test_personal_layers_with_client_state_equal_the_references(engine: str, needs_full_gradient: bool) -> None:
    correction = MixedCorrection(False, True, False, needs_full_gradient, proximal_strength=0.1)
    algorithm = fedavg(batch_size=8, lr=0.05)
    assert_equals_reference(
        engine, replace(algorithm, correction=correction, personal_layers=MatchingLayers(("fc3.*",)))
    )


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_an_offset_that_could_not_be_expected_is_refused(engine: str) -> None:
    correction = UnexpectedOffset(False, True, False, needs_full_gradient=False, proximal_strength=0.0)
    with pytest.raises(ValueError, match=r"UnexpectedOffset\.offset returns a tensor now .* use engine=reference"):
        train_on(engine, algorithm_with(correction))


@dataclass(frozen=True)
class MixedPersonalModel:
    correction: Correction
    personal_layers: PersonalLayers


@pytest.mark.parametrize("engine", ["reference", "cuda_graphs"])
@pytest.mark.parametrize(("downloads", "needs_full_gradient"), [(True, False), (False, True)])
def test_a_personal_model_has_no_server_state_and_no_full_gradient(
    engine: str, downloads: bool, needs_full_gradient: bool
) -> None:
    correction = MixedCorrection(downloads, False, False, needs_full_gradient, proximal_strength=0.1)
    personal_model = MixedPersonalModel(correction, Ditto(0.5).personal_layers)
    algorithm = replace(algorithm_with(ProximalTerm(0.1)), personal_model=personal_model)
    with pytest.raises(ValueError, match="personal_model=MixedPersonalModel uses MixedCorrection, which needs"):
        train_on(engine, algorithm)


@dataclass(frozen=True)
class AlternatingBatching:
    """Trains the personal layers and the other layers in turn."""

    inner: Batching

    @property
    def batch_size(self) -> int:
        return self.inner.batch_size

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        return self.inner.batches(num_held, rng)

    def num_examples(self, num_held: int) -> int:
        return self.inner.num_examples(num_held)

    def phases(self, num_steps: int) -> Ints:
        return np.arange(num_steps) % 2 + 1


@pytest.mark.parametrize("engine", ["reference", "vmap", "cuda_graphs"])
def test_steps_of_a_part_of_the_model_need_personal_layers(engine: str) -> None:
    algorithm = fedavg(cohort_size=4, batch_size=4, lr=LR)
    with pytest.raises(ValueError, match="no layer is personal: set personal_layers"):
        train_on(engine, replace(algorithm, batching=AlternatingBatching(algorithm.batching)))


def test_a_model_that_returns_a_tuple_is_refused() -> None:
    class PairModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(NUM_INPUTS, NUM_CLASSES)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            outputs = self.fc(images.flatten(1))
            return outputs, outputs

    model = FlatModel(PairModel())
    weights = model.read()
    with pytest.raises(ValueError, match="PairModel returns a tuple from forward"):
        model(weights[: model.num_trainable], weights[model.num_trainable :], torch.zeros(1, 3, 4, 4))
