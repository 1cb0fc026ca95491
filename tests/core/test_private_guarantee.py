"""Private training with a hostile component in every slot: it is refused, or it cannot weaken the guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.components import (
    SGD,
    AllClients,
    EpochBatching,
    FineTune,
    ImportanceReweighting,
    MatchingLayers,
    Median,
    MimeLiteMomentum,
    PoissonSampler,
    ProximalTerm,
    ScaffoldCorrection,
    ServerSGD,
    SizeWeightedSampler,
    UniformSampler,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.components.compressors import BF16
from manyeyes.core.algorithm import SLOTS, Algorithm, ServerStep
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import ClientStates, CohortResult, RoundContext, RoundMetrics, ServerState, init_state
from manyeyes.core.uplink import decompress
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.train import train

CLIPPING_NORM, NUM_USERS, SIDE = 0.5, 6, 4
NUM_TRAINABLE = 3 * SIDE * SIDE * 2
FEDAVG = Algorithm(AllClients(), EpochBatching(1, 2), SGD(0.1), WeightUniformly(), ServerSGD(1.0))


def make_population() -> Population:
    """Return six users with four images each, three to train on and one to evaluate on."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * NUM_USERS, SIDE, SIDE, 3), dtype=np.uint8)
    labels = SingleLabels(rng.integers(0, 2, 4 * NUM_USERS), ("day", "night"))
    split = np.array(["train", "train", "train", "val"] * NUM_USERS)
    return Population.from_arrays(images, labels, np.repeat(np.arange(NUM_USERS), 4), split=split)


ALL_SPLITS = make_population()
POPULATION = ALL_SPLITS.split("train")


class NeverRefuses(CentralDP):
    """The mechanism without refusals of its own, so that the core must refuse."""

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return None


SEEDED_NOISE = NeverRefuses(
    epsilon=0, noise_multiplier=1.0, delta=1e-3, clipping_norm=CLIPPING_NORM, reproducible_noise=True
)
OS_NOISE = replace(SEEDED_NOISE, reproducible_noise=False)


def private(privacy: CentralDP = SEEDED_NOISE, **components: Any) -> Algorithm:
    """Return a private algorithm with other components; its noise is calibrated for FedAvg."""
    return replace(FEDAVG, privacy=privacy.calibrate(FEDAVG, POPULATION, 10), **components)


class CountingEngine(ReferenceEngine):
    """The reference engine, which counts the rounds that it has trained."""

    num_rounds = 0

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        self.num_rounds += 1
        return super().train(weights, plan, context, client_states)


def make_engine(kind: type[CountingEngine] = CountingEngine) -> CountingEngine:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 2, bias=False)))
    return kind(EngineSetup(model, POPULATION, Preprocess(), torch.device("cpu")))


def run_rounds(
    algorithm: Algorithm, without: int | None = None, rounds: int = 1, engine: CountingEngine | None = None
) -> tuple[ServerState, RoundMetrics]:
    """Run some rounds, without one of the users."""
    engine = engine or make_engine()
    state, clients = init_state(algorithm, engine.model.read(), engine.num_trainable), dict[int, dict[str, Tensor]]()
    for round in range(rounds):
        plan = plan_round(algorithm, POPULATION, 0, round)
        plan = replace(plan, clients=tuple(client for client in plan.clients if client.client_id != without))
        state, metrics = run_round(algorithm, state, POPULATION, engine, clients, 0, plan)
    return state, metrics


def assert_refused(message: str, folder: Path, **components: Any) -> None:
    """Check that `validate`, a run before it writes anything, and a round before it trains refuse a component."""
    algorithm, engine = private(**components), make_engine()
    for call in (
        lambda: algorithm.validate(POPULATION),
        lambda: train(
            ALL_SPLITS, "linear", algorithm, eval_split="val", folder=folder / "run", rounds=2, progress=False
        ),
        lambda: run_round(
            algorithm, init_state(FEDAVG, torch.zeros(NUM_TRAINABLE), NUM_TRAINABLE), POPULATION, engine, {}, 0
        ),
    ):
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
        assert ". " not in str(error.value)
    assert not (folder / "run").exists()
    assert engine.num_rounds == 0


def assert_bounded(**components: Any) -> None:
    """Check that one user changes the sum by at most the clipping norm, and that the weights have secret noise."""
    algorithm = private(**components)
    algorithm.validate(POPULATION)
    all_users, _ = run_rounds(algorithm)
    for user in range(NUM_USERS):
        without_user, _ = run_rounds(algorithm, without=user)
        assert torch.linalg.vector_norm(all_users.weights - without_user.weights) * NUM_USERS <= CLIPPING_NORM * (
            1 + 1e-4
        )
    first, second = (run_rounds(replace(algorithm, privacy=private(OS_NOISE).privacy))[0] for _ in range(2))
    assert torch.isfinite(first.weights).all()
    assert not torch.isclose(first.weights, second.weights, rtol=0, atol=1e-6).all()


# Sampler, batching plan and client weights


class SameClients:
    """The same clients in every round."""

    cohort_size = 2

    def sample(self, population: Population, rng: np.random.Generator) -> Any:
        return np.arange(2)


class SneakyUniform(UniformSampler):
    def sample(self, population: Population, rng: np.random.Generator) -> Any:
        return np.arange(self.cohort_size)


class EqualToAll(type):
    """The type of classes that compare equal to every class."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(PoissonSampler)


class Disguised(SameClients, metaclass=EqualToAll):
    pass


@pytest.mark.parametrize("sampler", [SameClients(), SneakyUniform(2), Disguised(), SizeWeightedSampler(2)])
def test_a_sampler_that_the_accountant_does_not_model_is_refused(sampler: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for sampler=.*: set sampler to PoissonSampler, UniformSampler",
        tmp_path,
        sampler=sampler,
    )


class HugeWeights:
    """Huge client weights that compare equal to uniform ones."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def weights(self, algorithm: Algorithm, num_examples_K: Any, num_steps_K: Any, round: int) -> Any:
        return np.full(len(num_examples_K), 1e6)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Any, num_steps_K: Any, round: int) -> float:
        return 1e-6


class SneakyUniformWeights(WeightUniformly):
    def weights(self, algorithm: Algorithm, num_examples_K: Any, num_steps_K: Any, round: int) -> Any:
        return num_examples_K.astype(np.float64)


@pytest.mark.parametrize("weighting", [HugeWeights(), SneakyUniformWeights(), WeightByExamples()])
def test_client_weights_that_are_not_uniform_are_refused(weighting: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for client_weighting=.*: set client_weighting to WeightUniformly of manyeyes.components",
        tmp_path,
        client_weighting=weighting,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda clients: (replace(clients[0], weight=2.0), *clients[1:]),
            "privacy needs a weight of 1 for every client",
        ),
        (lambda clients: (clients[0], *clients), "privacy needs each client at most once per round"),
    ],
)
def test_a_plan_in_which_a_client_counts_twice_is_not_trained(change: Callable[[Any], Any], message: str) -> None:
    algorithm, engine = private(), make_engine()
    plan = plan_round(algorithm, POPULATION, 0, 0)
    plan = replace(plan, clients=change(plan.clients))
    with pytest.raises(ValueError, match=message):
        run_round(
            algorithm, init_state(algorithm, torch.zeros(NUM_TRAINABLE), NUM_TRAINABLE), POPULATION, engine, {}, 0, plan
        )
    assert engine.num_rounds == 0


class PopulationWeights:
    """Example weights from the labels of all users."""

    def class_weights(self, client_counts: Any, population_counts: Any) -> Any:
        return (population_counts / population_counts.sum()).astype(np.float32)


class SneakyImportance(ImportanceReweighting):
    def class_weights(self, client_counts: Any, population_counts: Any) -> Any:
        return PopulationWeights().class_weights(client_counts, population_counts)


@pytest.mark.parametrize("weighting", [PopulationWeights(), SneakyImportance((0.5, 0.5))])
def test_example_weights_that_may_read_all_labels_are_refused(weighting: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for example_weighting=.*: set example_weighting to ImportanceReweighting",
        tmp_path,
        example_weighting=weighting,
    )


def test_a_private_round_gives_no_label_counts_to_example_weights() -> None:
    """A component that the mechanism covers gets the same counts for every population too."""
    plans = [
        plan_round(private(example_weighting=ImportanceReweighting()), population, 0, 0)
        for population in (POPULATION, with_other_labels(POPULATION))
    ]
    for first, second in zip(plans[0].clients[:-1], plans[1].clients[:-1], strict=True):
        assert np.array_equal(first.example_weights_SB, second.example_weights_SB)
    assert not np.array_equal(POPULATION.class_counts, with_other_labels(POPULATION).class_counts)


def with_other_labels(population: Population) -> Population:
    """Return the population with other labels of the last user."""
    labels = population.labels.targets(np.arange(len(population))).astype(np.int64)
    labels[-3:] = (labels[-3:].sum() < 2) * 1
    return replace(population, labels=SingleLabels(labels, population.classes))


# Aggregator, correction and compressor


class Mean:
    """The mean without noise."""

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {}

    def aggregate(self, updates_KW: Tensor, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return updates_KW.mean(0), {}


class SneakyMedian(Median):
    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return None


@pytest.mark.parametrize("aggregator", [Mean(), SneakyMedian()])
def test_an_aggregator_is_refused(aggregator: Any, tmp_path: Path) -> None:
    assert_refused("would replace that sum: set aggregator=none", tmp_path, aggregator=aggregator)


def test_a_private_round_never_calls_an_aggregator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.core.round.check_private", lambda algorithm: None)
    with_aggregator, plain = run_rounds(private(aggregator=Mean()))[0], run_rounds(private())[0]
    assert torch.equal(with_aggregator.weights, plain.weights)


@dataclass(frozen=True)
class LeakyCorrection:
    """A correction that may declare less than it uploads."""

    uploads: bool = False
    has_server_state: bool = False
    gradient_scale, proximal_strength, needs_full_gradient, downloads = 1.0, 0.0, False, True

    def init(self, theta: Tensor) -> Tensor | None:
        return torch.zeros_like(theta) if self.has_server_state else None

    def offset(self, correction_state: Tensor | None, client_state: Tensor | None) -> Tensor | None:
        return None if correction_state is None else 1e6 * correction_state

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        return None, update

    def server_update(self, correction_state: Tensor | None, step: ServerStep) -> tuple[Tensor | None, Tensor]:
        return step.uploads, step.theta_after


@pytest.mark.parametrize(
    "correction",
    [LeakyCorrection(uploads=True), LeakyCorrection(has_server_state=True), ScaffoldCorrection(), MimeLiteMomentum()],
)
def test_a_correction_with_uploads_or_server_state_is_refused(correction: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy protects only updates, and correction=.* keeps more at the server", tmp_path, correction=correction
    )


def test_an_undeclared_upload_does_not_reach_the_server() -> None:
    assert run_rounds(private(correction=LeakyCorrection()), rounds=2)[0].correction_state is None
    assert_bounded(correction=LeakyCorrection())


class SneakyProximal(ProximalTerm):
    """A correction that makes the update longer just before it is sent."""

    def client_update(
        self,
        correction_state: Tensor | None,
        client_state: Tensor | None,
        update: Tensor,
        steps_times_lr: float,
        full_gradient: Tensor | None,
    ) -> tuple[None, None]:
        update.mul_(1e6)
        return None, None


def test_a_correction_cannot_lengthen_an_update() -> None:
    assert_bounded(correction=SneakyProximal(0.1))


@dataclass(frozen=True)
class WrongDecoder:
    """A compressor that decodes to another tensor."""

    make: Callable[[int], Tensor]
    error_feedback = False

    def num_bytes(self, num_elements: int) -> int:
        return num_elements

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        return {"values": update_N}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return self.make(num_elements)


class SneakyBF16(BF16):
    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return 1e6 * arrays["values"].float()


HUGE = WrongDecoder(lambda n: torch.full((n,), 1e6))


@pytest.mark.parametrize("compressor", [HUGE, SneakyBF16()])
def test_an_unknown_compressor_is_refused(compressor: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for compressor=.*: set compressor to BF16, Int8, TopK",
        tmp_path,
        compressor=compressor,
    )


def test_an_update_is_clipped_after_it_is_decoded() -> None:
    context = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, CLIPPING_NORM, compressor=HUGE)
    assert torch.linalg.vector_norm(decompress({}, 100, context)) == pytest.approx(CLIPPING_NORM)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.tensor([1e6]),  # would be added to every value
        lambda n: torch.tensor(1e6),
        lambda n: torch.full((1, n), 1e6),
        lambda n: torch.full((n,), 1e6, dtype=torch.bfloat16),  # its norm would be measured coarsely
    ],
)
def test_a_decoded_update_of_another_shape_or_type_is_refused(make: Callable[[int], Tensor]) -> None:
    context = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, CLIPPING_NORM, compressor=WrongDecoder(make))
    with pytest.raises(ValueError, match=r"compressor=WrongDecoder decoded .*"):
        decompress({}, 100, context)


# Batching and client optimizer


@dataclass(frozen=True)
class OutOfRange:
    """Batches with the examples of the next users."""

    batch_size: int = 2

    def batches(self, num_held: int, rng: np.random.Generator) -> Any:
        return np.arange(4).reshape(2, 2)

    def num_examples(self, num_held: int) -> int:
        return num_held

    def phases(self, num_steps: int) -> None:
        return None


class Repeating(OutOfRange):
    """One example a hundred times, which claims to be a million examples."""

    def batches(self, num_held: int, rng: np.random.Generator) -> Any:
        return np.zeros((50, 2), np.int64)

    def num_examples(self, num_held: int) -> int:
        return 10**6


def test_a_batch_with_the_examples_of_another_user_is_refused() -> None:
    algorithm, engine = private(batching=OutOfRange()), make_engine()
    with pytest.raises(ValueError, match="batching=OutOfRange returned a position beyond the examples of a client"):
        run_rounds(algorithm, engine=engine)
    assert engine.num_rounds == 0


def test_a_batching_cannot_make_a_client_count_for_more() -> None:
    assert_bounded(batching=Repeating())


@dataclass(frozen=True)
class HugeSteps:
    """A client optimizer whose steps are `scale` gradients."""

    scale: float
    max_grad_norm: float = 0.0
    persist_state: bool = False

    def learning_rate(self, round: int) -> float:
        return 0.1

    def init(self, theta: Tensor) -> tuple[Tensor, ...]:
        return ()

    def step(self, theta: Tensor, grad: Tensor, opt_state: Any, lr: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        theta.add_(0)  # must not change the tensor of another client
        return theta - self.scale * grad, ()


@pytest.mark.parametrize("scale", [1e6, 1e30, math.inf, math.nan])
def test_a_huge_update_is_clipped_and_a_non_finite_one_is_rejected(scale: float) -> None:
    assert_bounded(client_optimizer=HugeSteps(scale))


def test_a_round_of_rejected_updates_adds_only_noise() -> None:
    state, metrics = run_rounds(private(client_optimizer=HugeSteps(math.nan)))
    zero_updates, _ = run_rounds(private(client_optimizer=HugeSteps(0.0)))
    assert torch.equal(state.weights, zero_updates.weights)
    assert set(metrics.rejected_clients) == {"(private)"}


def test_vmap_refuses_a_client_optimizer_that_could_mix_clients(tmp_path: Path) -> None:
    algorithm, folder = replace(FEDAVG, privacy=SEEDED_NOISE, client_optimizer=HugeSteps(1.0)), tmp_path / "run"
    with pytest.raises(ValueError, match="engine=vmap does not support privacy with client_optimizer=HugeSteps"):
        train(ALL_SPLITS, "linear", algorithm, eval_split="val", folder=folder, engine="vmap", rounds=2, progress=False)
    assert not folder.exists()


class HugeLoss:
    """A loss whose gradient is huge, and NaN for one class."""

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        return torch.where(targets == 1, math.nan, 1e6 * outputs_BC.sum(1))


def test_a_loss_cannot_make_an_update_longer() -> None:
    assert_bounded(loss=HugeLoss())


# Personal layers, personal model and adaptation


@dataclass
class ChangingLayers:
    """Other personal layers with every call."""

    calls: list[int] = field(default_factory=list)
    __hash__ = object.__hash__

    def parameter_names(self, module: nn.Module) -> set[str]:
        self.calls.append(0)
        return {"1.weight"} if len(self.calls) % 2 else {"nothing"}


class LeakyEngine(CountingEngine):
    """An engine that adds to the sum what should stay with the clients."""

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        result = super().train(weights, plan, context, client_states)
        return replace(result, update_W=result.update_W + 1e3)


def test_values_without_noise_do_not_change() -> None:
    begin = make_engine().model.read()
    for engine in (make_engine(), make_engine(LeakyEngine)):
        state, _ = run_rounds(private(personal_layers=MatchingLayers(("1.*",))), engine=engine)
        assert torch.equal(state.weights, begin)
    state, _ = run_rounds(private(personal_layers=ChangingLayers()), rounds=3)
    assert torch.equal(state.weights, begin)


def test_a_sum_above_the_norm_of_its_clipped_updates_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a sum of updates whose norm is above that of clipped updates"):
        run_rounds(private(), engine=make_engine(LeakyEngine))


@dataclass(frozen=True)
class LeakyPersonalModel:
    """A personal model with a correction that uploads."""

    personal_layers = MatchingLayers(("*",))

    @property
    def correction(self) -> LeakyCorrection:
        return LeakyCorrection(uploads=True)


def test_a_personal_model_does_not_reach_the_weights() -> None:
    with_personal_model, plain = (
        run_rounds(private(personal_model=LeakyPersonalModel()), rounds=3)[0],
        run_rounds(private(), rounds=3)[0],
    )
    assert torch.equal(with_personal_model.weights, plain.weights)
    assert with_personal_model.correction_state is None
    assert_bounded(personal_model=LeakyPersonalModel())


@dataclass(frozen=True)
class HostileAdaptation:
    """A fine-tuning with hostile components, whose models go far away."""

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            FineTune().local_algorithm(algorithm),
            client_optimizer=HugeSteps(1e3),
            aggregator=Mean(),
            correction=LeakyCorrection(uploads=True),
        )


def test_an_adaptation_does_not_reach_the_weights() -> None:
    results = [
        train(
            ALL_SPLITS,
            "linear",
            replace(FEDAVG, privacy=SEEDED_NOISE, adaptation=adaptation),
            rounds=3,
            eval_split="val",
            progress=False,
        )
        for adaptation in (HostileAdaptation(), None)
    ]
    for first, second in zip(results[0].model.parameters(), results[1].model.parameters(), strict=True):
        assert torch.equal(first, second)


# Server optimizer


@dataclass(frozen=True)
class RecordingOptimizer:
    """A server optimizer that records the updates that it receives."""

    updates: list[Tensor] = field(default_factory=list)

    def init(self, theta: Tensor) -> dict[str, Tensor]:
        return {}

    def step(self, theta: Tensor, update: Tensor, state: dict[str, Tensor], round: int) -> Any:
        self.updates.append(update.clone())
        return theta - 1e3 * update, state


class Constant(NeverRefuses):
    """A mechanism that publishes a constant."""

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: Any, noise_seed: int
    ) -> tuple[Tensor, Any]:
        return torch.full_like(result.update_W, 0.25), privacy_state


def test_a_server_optimizer_receives_only_the_mechanisms_output() -> None:
    server = RecordingOptimizer()
    run_rounds(
        private(
            Constant(epsilon=0, noise_multiplier=1.0, delta=1e-3),
            server_optimizer=server,
            client_optimizer=HugeSteps(1e6),
        ),
        rounds=2,
    )
    assert len(server.updates) == 2
    assert all(torch.equal(update, torch.full_like(update, 0.25)) for update in server.updates)


def test_a_server_optimizer_never_receives_the_sum_without_noise() -> None:
    servers = [RecordingOptimizer(), RecordingOptimizer()]
    for server in servers:
        run_rounds(private(OS_NOISE, server_optimizer=server, client_optimizer=SGD(1e-30)))
    first, second = (server.updates[0] * NUM_USERS / CLIPPING_NORM for server in servers)
    for noise in (first, second, (first - second) / math.sqrt(2)):
        assert 0.5 < float(noise.std()) < 1.5  # of 96 values: seven standard deviations


# Callbacks


class HostileCallback:
    """A callback that overwrites everything it can reach."""

    def on_train_start(self, run: Any) -> None:
        self.attack(run)

    def on_round_end(self, run: Any, event: Any) -> None:
        self.attack(run)

    def on_evaluate(self, run: Any, event: Any) -> None:
        self.attack(run)

    def attack(self, run: Any) -> None:
        object.__setattr__(run.algorithm.privacy, "noise_multiplier", 0.0)
        object.__setattr__(run.algorithm, "aggregator", Mean())
        run.state.weights.fill_(1e6)
        for tensor in run.state.privacy_state.values():
            tensor.fill_(1e6)
        for event in run.events:
            event.clear()


def train_privately(*callbacks: Any) -> Any:
    algorithm = replace(FEDAVG, privacy=SEEDED_NOISE)
    return train(ALL_SPLITS, "linear", algorithm, rounds=3, eval_split="val", callbacks=callbacks, progress=False)


def test_a_callback_does_not_reach_the_weights() -> None:
    attacked, plain = train_privately(HostileCallback()), train_privately()
    for first, second in zip(attacked.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert [event.get("epsilon") for event in attacked.events] == [event.get("epsilon") for event in plain.events]


class FakeEpsilon:
    def on_round_end(self, run: Any, event: Any) -> None:
        event["epsilon"] = 0.0


def test_a_callback_cannot_change_the_reported_epsilon() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        train_privately(FakeEpsilon())


# All slots

HOSTILE: dict[str, Any] = {
    "sampler": Disguised(),
    "batching": OutOfRange(),
    "client_optimizer": HugeSteps(math.inf),
    "client_weighting": HugeWeights(),
    "server_optimizer": RecordingOptimizer(),
    "example_weighting": PopulationWeights(),
    "correction": LeakyCorrection(uploads=True, has_server_state=True),
    "personal_layers": ChangingLayers(),
    "personal_model": LeakyPersonalModel(),
    "adaptation": HostileAdaptation(),
    "compressor": HUGE,
    "aggregator": Mean(),
    "loss": HugeLoss(),
}


def test_every_slot_has_a_hostile_component() -> None:
    assert set(HOSTILE) == set(SLOTS) - {"privacy"}  # the mechanism is the component that is trusted


@pytest.mark.parametrize("slot", HOSTILE)
def test_what_a_hostile_component_publishes_is_clipped_and_noised_or_it_is_refused(slot: str) -> None:
    """The server optimizer receives the clipped updates plus the same noise as without updates, or nothing at all."""
    servers = [RecordingOptimizer(), RecordingOptimizer()]
    hostile, zero_update = (private(server_optimizer=server, client_optimizer=SGD(1e-30)) for server in servers)
    if slot != "server_optimizer":
        hostile = replace(hostile, **{slot: HOSTILE[slot]})
    try:
        hostile.validate(POPULATION)
        run_rounds(hostile)
    except ValueError:
        assert not servers[0].updates
        return
    run_rounds(zero_update)
    published, only_noise = servers[0].updates[0], servers[1].updates[0]
    difference = (published - only_noise)[published != 0]  # personal layers: 0 is published, and no noise
    assert torch.linalg.vector_norm(difference) <= CLIPPING_NORM * (1 + 1e-4)  # the mean of clipped updates
