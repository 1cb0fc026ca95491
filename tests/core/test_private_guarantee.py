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
from manyeyes.core.algorithm import Algorithm, ServerStep
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import ClientStates, CohortResult, RoundContext, RoundMetrics, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.client_step import decompress
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.train import train

CLIP, USERS, SIDE = 0.5, 6, 4
TRAINED = 3 * SIDE * SIDE * 2
FEDAVG = Algorithm(AllClients(), EpochBatching(1, 2), SGD(0.1), WeightUniformly(), ServerSGD(1.0))


def some_people() -> Population:
    """Six users of four images, three to train on and one to be tested on."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * USERS, SIDE, SIDE, 3), dtype=np.uint8)
    labels = SingleLabels(rng.integers(0, 2, 4 * USERS), ("day", "night"))
    split = np.array(["train", "train", "train", "val"] * USERS)
    return Population.from_arrays(images, labels, np.repeat(np.arange(USERS), 4), split=split)


WHOLE = some_people()
POPULATION = WHOLE.split("train")


class Silent(CentralDP):
    """The mechanism as it is, which leaves all refusals to the core."""

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return None


SEEDED = Silent(epsilon=0, noise_multiplier=1.0, delta=1e-3, clipping_norm=CLIP, reproducible_noise=True)
SECRET = replace(SEEDED, reproducible_noise=False)


def private(privacy: CentralDP = SEEDED, **slots: Any) -> Algorithm:
    """A private algorithm as a run has it; its noise is settled for slots that are honest."""
    return replace(FEDAVG, privacy=privacy.calibrate(FEDAVG, POPULATION, 10), **slots)


class Watched(ReferenceEngine):
    """The reference engine, which counts the rounds that it has trained."""

    rounds = 0

    def train(self, weights: Tensor, plan: RoundPlan, work: RoundContext, clients: ClientStates) -> CohortResult:
        self.rounds += 1
        return super().train(weights, plan, work, clients)


def make_engine(kind: type[Watched] = Watched) -> Watched:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 2, bias=False)))
    return kind(model, POPULATION, Preprocess(), torch.device("cpu"))


def run_rounds(
    algorithm: Algorithm, without: int | None = None, rounds: int = 1, **options: Any
) -> tuple[ServerState, RoundMetrics]:
    """Some rounds, in which one user may be missing."""
    engine = options.get("engine") or make_engine()
    state, clients = init_state(algorithm, engine.model.read(), engine.num_trainable), dict[int, dict[str, Tensor]]()
    for round in range(rounds):
        plan = plan_round(algorithm, POPULATION, 0, round)
        plan = replace(plan, clients=tuple(client for client in plan.clients if client.client_id != without))
        state, metrics = run_round(algorithm, state, POPULATION, engine, clients, 0, plan)
    return state, metrics


def assert_refused(sentence: str, folder: Path, **slots: Any) -> None:
    """By `check`, by a run before it writes anything, and by a round before it trains."""
    algorithm, engine = private(**slots), make_engine()
    for refused in (
        lambda: algorithm.validate(POPULATION),
        lambda: train(WHOLE, "linear", algorithm, eval_split="val", folder=folder / "run", rounds=2, progress=False),
        lambda: run_round(algorithm, init_state(FEDAVG, torch.zeros(TRAINED), TRAINED), POPULATION, engine, {}, 0),
    ):
        with pytest.raises(ValueError, match=sentence) as error:
            refused()
        assert "\n" not in str(error.value)
        assert ". " not in str(error.value)
    assert not (folder / "run").exists()
    assert engine.rounds == 0


def assert_bounded(**slots: Any) -> None:
    """One user more moves the sum by no more than the clip, and noise of the operating system is in the weights."""
    algorithm = private(**slots)
    algorithm.validate(POPULATION)
    whole, _ = run_rounds(algorithm)
    for user in range(USERS):
        less, _ = run_rounds(algorithm, without=user)
        assert torch.linalg.vector_norm(whole.weights - less.weights) * USERS <= CLIP * (1 + 1e-4)
    first, second = (run_rounds(replace(algorithm, privacy=private(SECRET).privacy))[0] for _ in range(2))
    assert torch.isfinite(first.weights).all()
    assert not torch.isclose(first.weights, second.weights, rtol=0, atol=1e-6).all()


# Who takes part, and how much every client counts


class First:
    """The same clients in every round."""

    cohort_size = 2

    def sample(self, population: Population, rng: np.random.Generator) -> Any:
        return np.arange(2)


class SneakyUniform(UniformSampler):
    def sample(self, population: Population, rng: np.random.Generator) -> Any:
        return np.arange(self.cohort_size)


class Disguise(type):
    """Of classes that say they are equal to another."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(PoissonSampler)


class Disguised(First, metaclass=Disguise):
    pass


@pytest.mark.parametrize("cohort", [First(), SneakyUniform(2), Disguised(), SizeWeightedSampler(2)])
def test_a_sampler_that_the_accountant_does_not_model_is_refused(cohort: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for sampler=.*: set sampler to PoissonSampler, UniformSampler",
        tmp_path,
        sampler=cohort,
    )


class Loud:
    """A client of the largest weight, behind a comparison that says that all weights are equal."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def weights(self, algorithm: Algorithm, sizes_K: Any, steps_K: Any, round: int) -> Any:
        return np.full(len(sizes_K), 1e6)

    def normalizer(self, algorithm: Algorithm, sizes_K: Any, steps_K: Any, round: int) -> float:
        return 1e-6


class SneakyEqually(WeightUniformly):
    def weights(self, algorithm: Algorithm, sizes_K: Any, steps_K: Any, round: int) -> Any:
        return sizes_K.astype(np.float64)


@pytest.mark.parametrize("weigh", [Loud(), SneakyEqually(), WeightByExamples()])
def test_client_weights_that_are_not_uniform_are_refused(weigh: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for client_weighting=.*: set client_weighting to WeightUniformly of manyeyes.components",
        tmp_path,
        client_weighting=weigh,
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda clients: (replace(clients[0], weight=2.0), *clients[1:]),
            "privacy needs a weight of 1 for every client",
        ),
        (lambda clients: (clients[0], *clients), "privacy needs each client at most once per round"),
    ],
)
def test_a_plan_in_which_a_client_counts_twice_is_not_trained(change: Callable[[Any], Any], sentence: str) -> None:
    algorithm, engine = private(), make_engine()
    plan = plan_round(algorithm, POPULATION, 0, 0)
    plan = replace(plan, clients=change(plan.clients))
    with pytest.raises(ValueError, match=sentence):
        run_round(algorithm, init_state(algorithm, torch.zeros(TRAINED), TRAINED), POPULATION, engine, {}, 0, plan)
    assert engine.rounds == 0


class Everybodys:
    """Example weights from everybody's labels."""

    def class_weights(self, client_counts: Any, population_counts: Any) -> Any:
        return (population_counts / population_counts.sum()).astype(np.float32)


class SneakyRatio(ImportanceReweighting):
    def class_weights(self, client_counts: Any, population_counts: Any) -> Any:
        return Everybodys().class_weights(client_counts, population_counts)


@pytest.mark.parametrize("reweigh", [Everybodys(), SneakyRatio((0.5, 0.5))])
def test_example_weights_that_may_read_everybodys_labels_are_refused(reweigh: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for example_weighting=.*: set example_weighting to ImportanceReweighting",
        tmp_path,
        example_weighting=reweigh,
    )


def test_a_private_round_gives_nobodys_label_counts_to_example_weights() -> None:
    """Not even to one that a mechanism covers and does not refuse: it gets the same counts for every population."""
    plans = [
        plan_round(private(example_weighting=ImportanceReweighting()), population, 0, 0)
        for population in (POPULATION, _turned(POPULATION))
    ]
    for first, second in zip(plans[0].clients[:-1], plans[1].clients[:-1], strict=True):
        assert np.array_equal(first.example_weights_SB, second.example_weights_SB)
    assert not np.array_equal(POPULATION.class_counts, _turned(POPULATION).class_counts)


def _turned(population: Population) -> Population:
    """With other labels of the last user."""
    labels = population.labels.targets(np.arange(len(population))).copy()
    labels[-3:] = (labels[-3:].sum() < 2) * 1
    return replace(population, labels=SingleLabels(labels, population.classes))


# How updates become one


class Mean:
    """A sum without noise."""

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {}

    def aggregate(self, updates_KW: Tensor, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return updates_KW.mean(0), {}


class SneakyMedian(Median):
    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return None


@pytest.mark.parametrize("aggregate", [Mean(), SneakyMedian()])
def test_an_aggregation_rule_is_refused(aggregate: Any, tmp_path: Path) -> None:
    sentence = "would replace that sum: set aggregator=none"
    assert_refused(sentence, tmp_path, aggregator=aggregate)


def test_a_private_round_never_asks_an_aggregation_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.core.round.check_private", lambda algorithm: None)
    ruled, plain = run_rounds(private(aggregator=Mean()))[0], run_rounds(private())[0]
    assert torch.equal(ruled.weights, plain.weights)


@dataclass(frozen=True)
class Telling:
    """A correction that may say less than it sends."""

    uploads: bool = False
    has_server_state: bool = False
    gradient_scale, proximal_strength, needs_full_gradient, downloads = 1.0, 0.0, False, True

    def init(self, theta: Tensor) -> Tensor | None:
        return torch.zeros_like(theta) if self.has_server_state else None

    def offset(self, shared: Tensor | None, own: Tensor | None) -> Tensor | None:
        return None if shared is None else 1e6 * shared

    def client_update(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        return None, update

    def server_update(self, shared: Tensor | None, step: ServerStep) -> tuple[Tensor | None, Tensor]:
        return step.uploads, step.theta_after


@pytest.mark.parametrize(
    "correct", [Telling(uploads=True), Telling(has_server_state=True), ScaffoldCorrection(), MimeLiteMomentum()]
)
def test_a_correction_with_reports_or_server_state_is_refused(correct: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy protects only updates, and correction=.* keeps more at the server", tmp_path, correction=correct
    )


def test_what_a_correction_uploads_without_saying_so_does_not_reach_the_server() -> None:
    assert run_rounds(private(correction=Telling()), rounds=2)[0].correction_state is None
    assert_bounded(correction=Telling())


class SneakyProximal(ProximalTerm):
    """One that makes the update longer just before it is sent."""

    def client_update(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[None, None]:
        update.mul_(1e6)
        return None, None


def test_a_correction_cannot_lengthen_an_update() -> None:
    assert_bounded(correction=SneakyProximal(0.1))


@dataclass(frozen=True)
class Magnifying:
    """A compressor that decodes to something else."""

    make: Callable[[int], Tensor]
    error_feedback = False

    def num_bytes(self, numbers: int) -> int:
        return numbers

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        return {"values": update_N}

    def decode(self, arrays: dict[str, Tensor], numbers: int) -> Tensor:
        return self.make(numbers)


class SneakyBF16(BF16):
    def decode(self, arrays: dict[str, Tensor], numbers: int) -> Tensor:
        return 1e6 * arrays["values"].float()


HUGE = Magnifying(lambda numbers: torch.full((numbers,), 1e6))


@pytest.mark.parametrize("compress", [HUGE, SneakyBF16()])
def test_a_compressor_that_is_not_known_is_refused(compress: Any, tmp_path: Path) -> None:
    assert_refused(
        "privacy has no guarantee for compressor=.*: set compressor to BF16, Int8, TopK", tmp_path, compressor=compress
    )


def test_an_update_is_clipped_after_it_is_decoded() -> None:
    work = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, CLIP, compressor=HUGE)
    assert torch.linalg.vector_norm(decompress({}, 100, work)) == pytest.approx(CLIP)


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers: torch.tensor([1e6]),  # would be added to every number
        lambda numbers: torch.tensor(1e6),
        lambda numbers: torch.full((1, numbers), 1e6),
        lambda numbers: torch.full((numbers,), 1e6, dtype=torch.bfloat16),  # whose length is measured coarsely
    ],
)
def test_a_decoded_update_of_another_shape_or_type_is_refused(make: Callable[[int], Tensor]) -> None:
    work = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None, CLIP, compressor=Magnifying(make))
    with pytest.raises(ValueError, match=r"compress(or)?=Magnifying decoded .*: it must return 100 float32 numbers"):
        decompress({}, 100, work)


# What a client does


@dataclass(frozen=True)
class Beyond:
    """Batches with the images of the next users."""

    batch_size: int = 2

    def batches(self, held: int, rng: np.random.Generator) -> Any:
        return np.arange(4).reshape(2, 2)

    def num_examples(self, held: int) -> int:
        return held

    def phases(self, steps: int) -> None:
        return None


class Repeating(Beyond):
    """One image a thousand times, which is said to be a million."""

    def batches(self, held: int, rng: np.random.Generator) -> Any:
        return np.zeros((500, 2), np.int64)

    def num_examples(self, held: int) -> int:
        return 10**6


def test_a_batch_with_the_examples_of_another_user_is_refused() -> None:
    algorithm, engine = private(batching=Beyond()), make_engine()
    with pytest.raises(ValueError, match="batching=Beyond returned a position beyond the examples of a client"):
        run_rounds(algorithm, engine=engine)
    assert engine.rounds == 0


def test_a_batching_cannot_make_a_client_count_for_more() -> None:
    assert_bounded(batching=Repeating())


@dataclass(frozen=True)
class Wild:
    """A client optimizer that goes as far as it is told."""

    far: float
    max_grad_norm: float = 0.0
    persist_state: bool = False

    def learning_rate(self, round: int) -> float:
        return 0.1

    def init(self, theta: Tensor) -> tuple[Tensor, ...]:
        return ()

    def step(self, theta: Tensor, gradient: Tensor, slots: Any, lr: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        theta.add_(0)  # what it is given is its own
        return theta - self.far * gradient, ()


@pytest.mark.parametrize("far", [1e6, 1e30, math.inf, math.nan])
def test_an_enormous_update_is_clipped_and_one_that_is_not_finite_is_left_out(far: float) -> None:
    assert_bounded(client_optimizer=Wild(far))


def test_updates_that_are_all_left_out_leave_noise_alone() -> None:
    state, metrics = run_rounds(private(client_optimizer=Wild(math.nan)))
    none, _ = run_rounds(private(client_optimizer=Wild(0.0)))
    assert torch.equal(state.weights, none.weights)
    assert set(metrics.rejected_clients) == {"(private)"}


def test_a_client_optimizer_that_could_mix_clients_is_not_given_several_at_once(tmp_path: Path) -> None:
    algorithm = replace(FEDAVG, privacy=SEEDED, client_optimizer=Wild(1.0))
    with pytest.raises(
        ValueError,
        match=r"no guarantee that (local|client_optimizer)=Wild keeps them apart: use engine=cuda_graphs or",
    ):
        train(
            WHOLE,
            "linear",
            algorithm,
            eval_split="val",
            folder=tmp_path / "run",
            engine="vmap",
            rounds=2,
            progress=False,
        )
    assert not (tmp_path / "run").exists()


# What stays with the client


@dataclass
class Shifting:
    """Other personal layers whenever it is asked."""

    asked: list[int] = field(default_factory=list)
    __hash__ = object.__hash__

    def parameter_names(self, module: nn.Module) -> set[str]:
        self.asked.append(0)
        return {"1.weight"} if len(self.asked) % 2 else {"nothing"}


class Leaking(Watched):
    """An engine that sums what should stay with the clients."""

    def train(self, weights: Tensor, plan: RoundPlan, work: RoundContext, clients: ClientStates) -> CohortResult:
        result = super().train(weights, plan, work, clients)
        return replace(result, update_W=result.update_W + 1e3)


def test_where_no_noise_is_added_nothing_of_the_clients_reaches_the_weights() -> None:
    begin = make_engine().model.read()
    for engine in (make_engine(), make_engine(Leaking)):
        state, _ = run_rounds(private(personal_layers=MatchingLayers(("1.*",))), engine=engine)
        assert torch.equal(state.weights, begin)
    state, _ = run_rounds(private(personal_layers=Shifting()), rounds=3)
    assert torch.equal(state.weights, begin)


def test_a_sum_that_is_longer_than_its_clips_is_not_used() -> None:
    with pytest.raises(RuntimeError, match="a sum of updates that is longer than privacy's clip allows"):
        run_rounds(private(), engine=make_engine(Leaking))


@dataclass(frozen=True)
class Own:
    """A model of each client's own that tries to say more."""

    personal_layers = MatchingLayers(("*",))

    @property
    def correction(self) -> Telling:
        return Telling(uploads=True)


def test_a_model_of_the_clients_own_does_not_reach_the_weights() -> None:
    own, plain = run_rounds(private(personal_model=Own()), rounds=3)[0], run_rounds(private(), rounds=3)[0]
    assert torch.equal(own.weights, plain.weights)
    assert own.correction_state is None
    assert_bounded(personal_model=Own())


@dataclass(frozen=True)
class Straying:
    """A fine-tuning of another algorithm, whose models go far away."""

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            FineTune().local_algorithm(algorithm),
            client_optimizer=Wild(1e3),
            aggregator=Mean(),
            correction=Telling(uploads=True),
        )


def test_an_adaptation_does_not_reach_the_weights() -> None:
    results = [
        train(
            WHOLE,
            "linear",
            replace(FEDAVG, privacy=SEEDED, adaptation=adapt),
            rounds=3,
            eval_split="val",
            progress=False,
        )
        for adapt in (Straying(), None)
    ]
    for first, second in zip(results[0].model.parameters(), results[1].model.parameters(), strict=True):
        assert torch.equal(first, second)


# What the server sees


@dataclass(frozen=True)
class Seeing:
    """A server optimizer that remembers all that it is given."""

    seen: list[Tensor] = field(default_factory=list)

    def init(self, theta: Tensor) -> dict[str, Tensor]:
        return {}

    def step(self, theta: Tensor, update: Tensor, state: dict[str, Tensor], round: int) -> Any:
        self.seen.append(update.clone())
        return theta - 1e3 * update, state


class Constant(Silent):
    """A mechanism of a user's own, which lets nothing out."""

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: Any, noise_seed: int
    ) -> tuple[Tensor, Any]:
        return torch.full_like(result.update_W, 0.25), privacy_state


def test_a_server_optimizer_sees_only_what_the_mechanism_lets_out() -> None:
    server = Seeing()
    run_rounds(
        private(
            Constant(epsilon=0, noise_multiplier=1.0, delta=1e-3), server_optimizer=server, client_optimizer=Wild(1e6)
        ),
        rounds=2,
    )
    assert len(server.seen) == 2
    assert all(torch.equal(update, torch.full_like(update, 0.25)) for update in server.seen)


def test_a_server_optimizer_never_sees_the_sum_without_noise() -> None:
    servers = [Seeing(), Seeing()]
    for server in servers:
        run_rounds(private(SECRET, server_optimizer=server, client_optimizer=SGD(1e-30)))
    first, second = (server.seen[0] * USERS / CLIP for server in servers)
    for noise in (first, second, (first - second) / math.sqrt(2)):
        assert 0.5 < float(noise.std()) < 1.5  # of 96 numbers: seven deviations
