"""A federated algorithm: the slots that make it, and the round that is the same for all of them.

The round is Algorithm 1 of Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution"
(2020): select clients, update locally, aggregate, step the server. Axes: K clients, S steps, B examples a batch,
C classes, P trained parameters, W all shared numbers (P, then live BatchNorm statistics).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyeyes.chance import generator
from manyeyes.chance import key as chance_key
from manyeyes.population import Floats, Ints, Population

Clients = Mapping[int, dict[str, Tensor]]  # what clients keep between rounds, by their number in `users`
ClientStore = MutableMapping[int, dict[str, Tensor]]
STRIDE = 1_000_003  # between the seeds of two steps: more than a model has layers
ALL, OWN, SHARED = 0, 1, 2  # what of the model moves in a step: everything, the personal layers alone, or the others
BESIDE = "beside/"  # before the names of what a client keeps of the model of its own


class Cohort(Protocol):
    """Who takes part in a round."""

    def select(self, population: Population, rng: np.random.Generator) -> Ints: ...


class Draw(Protocol):
    """Which examples a client trains on, and in which batches."""

    @property
    def batch(self) -> int: ...

    def rows(self, held: int, rng: np.random.Generator) -> Ints:
        """Positions 0..held-1 in order of training [S, B]; -1 fills the last batch."""

    def size(self, held: int) -> int:
        """How many examples that counts as: the n_k of a client that holds so many."""

    def only(self, steps: int) -> Ints | None:
        """What of the model moves at each of so many steps [S]; None: always everything."""


class Reweigh(Protocol):
    """How much an example counts."""

    def ratios(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """The weight of an example of each class [C]."""


class Weigh(Protocol):
    """How much a client counts: the aggregate is sum(weights * updates) / total."""

    def weights(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> NDArray[np.float64]: ...

    def total(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> float: ...


class Local(Protocol):
    """How a client steps: a pure function of flat vectors [P], or of several side by side [K, P]."""

    @property
    def clip(self) -> float:
        """Bound on the norm of each gradient; 0 for none."""

    @property
    def keep(self) -> bool:
        """Whether `slots` outlive the round."""

    def rate(self, round: int) -> float:
        """The learning rate of round 0, 1, ..."""

    def start(self, theta: Tensor) -> tuple[Tensor, ...]: ...

    def step(
        self, theta: Tensor, gradient: Tensor, slots: tuple[Tensor, ...], lr: float | Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]: ...


class Correction(Protocol):
    """What is added to each local gradient g: scale * g + pull * (theta - theta_t) + shift."""

    @property
    def scale(self) -> float: ...

    @property
    def pull(self) -> float: ...

    @property
    def whole(self) -> bool:
        """Whether it needs the gradient of a client's whole data at theta_t."""

    @property
    def reports(self) -> bool:
        """Whether clients report more than their update."""

    def start(self, theta: Tensor) -> Tensor | None:
        """What the server keeps for it."""

    def shift(self, shared: Tensor | None, own: Tensor | None) -> Tensor | None: ...

    def finish(
        self, shared: Tensor | None, own: Tensor | None, update: Tensor, distance: float, gradient: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """What the client keeps, and what it reports; `distance` is its number of steps times the learning rate."""

    def merge(self, shared: Tensor | None, reports: Tensor | None, kept: int, users: int) -> Tensor | None:
        """What the server keeps after a round; `reports` is the sum over the `kept` clients."""


class Server(Protocol):
    """How the server steps, given the aggregated update g = theta_t - theta of the clients."""

    def start(self, theta: Tensor) -> dict[str, Tensor]: ...

    def step(
        self, theta: Tensor, update: Tensor, state: dict[str, Tensor], round: int
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


class Personal(Protocol):
    """Which layers stay with the client."""

    def names(self, module: nn.Module) -> set[str]:
        """Those of the module's parameters and buffers."""


class Beside(Protocol):
    """A model of each client's own, which trains on the same batches beside the shared one and is never sent."""

    @property
    def correct(self) -> Correction:
        """What ties it to the server's weights."""

    @property
    def personal(self) -> Personal:
        """Everything."""


class Adapt(Protocol):
    """What a client does with the model before it is evaluated on that client's own examples."""

    def task(self, algorithm: Algorithm) -> Algorithm:
        """A round in which every client trains everything for itself."""


class Privacy(Protocol):
    """What keeps anybody from reading a user's part off the model."""

    @property
    def reproducible_noise(self) -> bool:
        """Whether the noise comes from the run's seed."""

    def settled(self, algorithm: Algorithm, population: Population, rounds: int) -> Privacy:
        """With all that follows from a run's users and rounds."""

    def start(self) -> dict[str, Tensor]:
        """What the server keeps for it."""

    def bound(self, kept: dict[str, Tensor]) -> float:
        """The length that no update of the round exceeds."""

    def protect(
        self, result: Aggregate, plan: Plan, work: Work, kept: dict[str, Tensor], secret: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean update [W] with noise that follows from `secret`, and what the server keeps."""

    def spent(self, rounds: int, kept: dict[str, Tensor]) -> float:
        """Epsilon after so many rounds."""

    def affordable(self, rounds: int) -> int:
        """How many of so many rounds the budget allows."""

    def words(self) -> str:
        """What is promised, for a report."""


@dataclass(frozen=True)
class Algorithm:
    """The slots. Any mix is legal; one without a meaning is refused by name, by the part that cannot live with it."""

    cohort: Cohort  # who takes part
    draw: Draw  # what a client trains on
    local: Local  # how a client steps
    weigh: Weigh  # how much a client counts
    server: Server  # how the server steps
    reweigh: Reweigh | None = None  # how much an example counts; None: all alike
    correct: Correction | None = None  # what is added to each local gradient
    personal: Personal | None = None  # which layers stay with the client
    privacy: Privacy | None = None  # what hides each user in the sum
    beside: Beside | None = None  # a model of each client's own, beside the shared one
    adapt: Adapt | None = None  # what a client does with the model before it is evaluated

    def check(self, population: Population) -> None:
        """Refuse, in one sentence, what has no meaning: asked of every part before round 1."""
        for slot in fields(self):
            refuse = getattr(getattr(self, slot.name), "refuse", None)
            if refuse is not None and (reason := refuse(self, population)):
                raise ValueError(reason)


@dataclass(frozen=True, eq=False)
class Client:
    """What one client does in one round; row -1 is padding."""

    user: int
    key: int  # its number in `population.users`, which no view changes
    size: int  # n_k
    weight: float
    rows_SB: Ints
    weights_SB: Floats
    dice_SBD: Floats | None  # uniform numbers for the augmentation of each example
    seeds_S: Ints  # for the dropout of each step
    whole: Ints | None  # every example it holds, and their weights, where a correction needs them
    whole_weights: Floats | None
    only_S: Ints | None = None  # what of the model moves at each step; None: everything

    @property
    def steps(self) -> int:
        return len(self.rows_SB)


@dataclass(frozen=True, eq=False)
class Plan:
    """A round as pure data: everything that chance decides in it, the same on every engine and machine."""

    seed: int
    round: int
    clients: tuple[Client, ...]

    @property
    def alternates(self) -> bool:
        """Whether some steps move a part of the model alone."""
        return any(client.only_S is not None for client in self.clients)


@dataclass(frozen=True, eq=False)
class Work:
    """What every client of a round is told."""

    local: Local
    lr: float | Tensor
    correct: Correction | None
    shared: Tensor | None  # what the server keeps for the correction [P]
    personal: Tensor | None  # true where a number stays with the client [W]
    bound: float = math.inf  # on the length of what a client sends: a longer update is scaled down to it
    tied: bool = False  # whether the correction reaches personal layers too


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What an engine returns: sums over the clients whose update was finite, and statistics of each."""

    update_W: Tensor  # sum of weight * (theta_t - theta)
    reports_P: Tensor | None  # sum of what the correction reports
    kept_K: NDArray[np.bool_]
    loss_K: NDArray[np.float64]
    norm_K: NDArray[np.float64]
    keeps: dict[int, dict[str, Tensor]]  # what the kept clients keep for their next round, by key


class Engine(Protocol):
    """Plan to sum of updates."""

    @property
    def trained(self) -> int:
        """P."""

    @property
    def dice(self) -> int:
        """How many random numbers the augmentation of an example takes."""

    def personal(self, personal: Personal) -> Tensor: ...

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate: ...


@dataclass(frozen=True, eq=False)
class State:
    """What the server keeps between rounds."""

    round: int
    weights: Tensor  # [W]
    server: dict[str, Tensor]
    correction: Tensor | None
    privacy: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What is told of a round."""

    round: int
    loss: float
    norm: float  # mean length of a client's update
    clients: int
    images: int  # examples trained on
    batches: int  # local batches of the largest client; with privacy, which tells of no single one, of the mean client
    left_out: tuple[str, ...]  # names of the clients whose update was not finite
    epsilon: float | None = None  # what privacy has spent so far
    clip: float | None = None  # the bound that privacy set on the length of an update


class Diverged(RuntimeError):
    """Training has left the finite numbers."""


def start(algorithm: Algorithm, weights: Tensor, trained: int) -> State:
    """The state before round 1."""
    theta = weights[:trained]
    correction = None if algorithm.correct is None else algorithm.correct.start(theta)
    privacy = {} if algorithm.privacy is None else algorithm.privacy.start()
    return State(0, weights, algorithm.server.start(theta), correction, privacy)


def plan_round(algorithm: Algorithm, population: Population, seed: int, round: int, dice: int = 0) -> Plan:
    """Select clients and draw what each trains on, with `dice` random numbers for each example's augmentation."""
    users = algorithm.cohort.select(population, generator(seed, "cohort", round))
    keys, held = population.users[users].tolist(), population.sizes[users].tolist()
    drawn = [algorithm.draw.rows(n, generator(seed, "draw", round, k)) for k, n in zip(keys, held, strict=True)]
    sizes_K, steps_K = np.array([algorithm.draw.size(n) for n in held]), np.array([len(rows) for rows in drawn])
    weights = algorithm.weigh.weights(algorithm, sizes_K, steps_K, round).tolist()
    clients = []
    for user, key, size, weight, rows in zip(users.tolist(), keys, sizes_K.tolist(), weights, drawn, strict=True):
        real, first = rows >= 0, int(population.offsets[user])
        ratios = example_weights(algorithm, population, user)
        whole = population.examples(user) if algorithm.correct and algorithm.correct.whole else None
        client = Client(
            user=user,
            key=key,
            size=size,
            weight=weight,
            rows_SB=np.where(real, rows + first, -1),
            weights_SB=real.astype(np.float32) if ratios is None else np.where(real, ratios[rows], np.float32(0)),
            dice_SBD=generator(seed, "augment", round, key).random((*rows.shape, dice), np.float32) if dice else None,
            seeds_S=chance_key(seed, "dropout", round, key) % 2**40 + STRIDE * np.arange(len(rows)),
            whole=whole,
            whole_weights=ratios if ratios is not None or whole is None else np.ones(len(whole), np.float32),
            only_S=algorithm.draw.only(len(rows)),
        )
        clients.append(client)
    return Plan(seed, round, tuple(clients))


def example_weights(algorithm: Algorithm, population: Population, user: int) -> Floats | None:
    """The weight of each example that a user holds; None where all count alike."""
    if algorithm.reweigh is None:
        return None
    ratios = algorithm.reweigh.ratios(population.histogram(user), population.class_counts)
    return ratios[population.labels.targets(population.examples(user))]


def play_round(
    algorithm: Algorithm,
    state: State,
    population: Population,
    engine: Engine,
    clients: ClientStore,
    seed: int,
    plan: Plan | None = None,
    noise: int | None = None,
) -> tuple[State, Report]:
    """One round: select clients, update locally, aggregate, step the server; a `plan` made ahead is not made again.

    `noise` decides what privacy adds, where several processes have to add the same; else the operating system does.
    """
    plan = plan or plan_round(algorithm, population, seed, state.round, engine.dice)
    assert (plan.seed, plan.round) == (seed, state.round)
    held = {client.key: found for client in plan.clients if (found := clients.get(client.key))}
    personal = None if algorithm.personal is None else engine.personal(algorithm.personal)
    lr, privacy = algorithm.local.rate(state.round), algorithm.privacy
    bound = math.inf if privacy is None else privacy.bound(state.privacy)
    work = Work(algorithm.local, lr, algorithm.correct, state.correction, personal, bound)

    result = engine.train(state.weights, plan, work, held) if plan.clients else nothing(state.weights)

    kept = [client for client, good in zip(plan.clients, result.kept_K, strict=True) if good]
    left_out = [population.name(c.user) for c, good in zip(plan.clients, result.kept_K, strict=True) if not good]
    if plan.clients and not kept and privacy is None:  # to stop would tell of them: a private round goes on with noise
        raise Diverged(f"no client of round {state.round + 1} returned a finite update")
    hidden: dict[str, Tensor] = {}
    if privacy is None:
        total = algorithm.weigh.total(algorithm, *_sizes(kept), state.round) if kept else 1.0  # chance chose nobody
        update = result.update_W / total
    else:
        update, hidden = privacy.protect(result, plan, work, state.privacy, _secret(privacy, seed, state, noise))
        left_out = ["(private)"] * len(left_out)  # that a user took part is not told

    theta, statistics = state.weights[: engine.trained], state.weights[engine.trained :]
    theta, server = algorithm.server.step(theta, update[: engine.trained], state.server, state.round)
    statistics = statistics - update[engine.trained :]  # BatchNorm statistics are averaged, not optimised
    correction = state.correction
    if algorithm.correct is not None and kept:
        correction = algorithm.correct.merge(correction, result.reports_P, len(kept), len(population.users))

    good, told = result.kept_K, len(kept) > (0 if privacy is None else 1)  # the mean of one is that one's own
    steps = [c.steps for c in plan.clients] or [0]
    examples = np.array([(c.rows_SB >= 0).sum() for c in plan.clients])
    report = Report(
        round=state.round + 1,
        loss=float(np.average(result.loss_K[good], weights=examples[good])) if told else math.nan,
        norm=float(result.norm_K[good].mean()) if told else math.nan,
        clients=len(plan.clients),
        images=int(examples.sum()),
        batches=max(steps) if privacy is None else math.ceil(np.mean(steps)),
        left_out=tuple(left_out),
        epsilon=None if privacy is None else privacy.spent(state.round + 1, hidden),
        clip=None if privacy is None else bound,
    )
    weights = torch.cat([theta, statistics])
    if (told and not np.isfinite(report.loss)) or not bool(torch.isfinite(weights).all()):
        raise Diverged(f"the weights after round {report.round} are no longer finite")
    keeps = result.keeps
    if algorithm.beside is not None and plan.clients:
        own = _train_beside(algorithm, state, plan, engine, held, lr)
        keeps = {k: held.get(k, {}) | own.get(k, {}) | keeps.get(k, {}) for k in sorted(own.keys() | keeps.keys())}
    clients.update(keeps)
    return State(state.round + 1, weights, server, correction, hidden), report


def _train_beside(
    algorithm: Algorithm, state: State, plan: Plan, engine: Engine, clients: Clients, lr: float
) -> dict[int, dict[str, Tensor]]:
    """What the clients keep of their own models, each from where it was or, at first, from the server's weights."""
    assert algorithm.beside is not None
    everything = engine.personal(algorithm.beside.personal)
    work = Work(algorithm.local, lr, algorithm.beside.correct, None, everything, tied=True)
    own = {
        client.key: {name.removeprefix(BESIDE): t for name, t in kept.items() if name.startswith(BESIDE)}
        for client in plan.clients
        if (kept := clients.get(client.key))
    }
    keeps = engine.train(state.weights, plan, work, own).keeps
    return {key: {BESIDE + name: tensor for name, tensor in kept.items()} for key, kept in keeps.items()}


def nothing(weights: Tensor) -> Aggregate:
    """The result of a round in which chance has chosen nobody."""
    none = np.zeros(0)
    return Aggregate(torch.zeros_like(weights), None, none.astype(bool), none, none, {})


def _secret(privacy: Privacy, seed: int, state: State, noise: int | None) -> int:
    """What noise follows from: the run's seed, or 128 bits that the operating system draws and nobody keeps."""
    if privacy.reproducible_noise:
        return chance_key(seed, "noise", state.round)
    return secrets.randbits(128) if noise is None else noise


def _sizes(clients: list[Client]) -> tuple[Ints, Ints]:
    return np.array([c.size for c in clients]), np.array([c.steps for c in clients])
