"""A federated algorithm: the slots that make it, and what passes between them in a round (`manyeyes.round`).

The round is Algorithm 1 of Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution"
(2020): select clients, update locally, aggregate, step the server. Axes: K clients, S steps, B examples a batch,
C classes, P trained parameters, W all shared numbers (P, then live BatchNorm statistics).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyeyes.population import Floats, Ints, Population

Clients = Mapping[int, dict[str, Tensor]]  # what clients keep between rounds, by their number in `users`
ClientStore = MutableMapping[int, dict[str, Tensor]]
FLOAT = 4  # bytes of a number that travels as it is
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


class Compress(Protocol):
    """How a client packs what it sends: the arrays that travel, and what the server reads in them."""

    @property
    def feedback(self) -> bool:
        """Whether what was lost on the way is kept by the client, and sent with its next update."""

    def bytes(self, numbers: int) -> int:
        """Of an update of so many numbers."""

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]: ...

    def decode(self, arrays: dict[str, Tensor], numbers: int) -> Tensor: ...


class Combine(Protocol):
    """How the clients' updates become one."""

    def combine(self, updates_KW: Tensor) -> Tensor:
        """From those of the clients that are kept."""


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
    compress: Compress | None = None  # how an update is packed; None: as float32
    aggregate: Combine | None = None  # how updates become one; None: their sum by weight

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
    images: int = field(init=False)  # that its steps see

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", int(np.count_nonzero(self.rows_SB >= 0)))

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
    compress: Compress | None = None  # how an update is packed
    apart: bool = False  # whether every client's update is wanted, and not their sum alone


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What an engine returns: sums over the clients whose update was finite, and statistics of each."""

    update_W: Tensor  # sum of weight * (theta_t - theta)
    reports_P: Tensor | None  # sum of what the correction reports
    kept_K: NDArray[np.bool_]
    loss_K: NDArray[np.float64]
    norm_K: NDArray[np.float64]
    keeps: dict[int, dict[str, Tensor]]  # what the kept clients keep for their next round, by key
    updates_KW: Tensor | None = None  # each client's own, where they are wanted apart
    why: Mapping[int, str] = field(default_factory=dict)  # a client is left out, by key, if not for numbers not finite


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
    bytes_up: int = 0  # what all clients send: their updates, and what a correction reports
    bytes_down: int = 0  # what they are sent: weights, and what the server keeps for a correction
    why: Mapping[str, str] = field(default_factory=dict)  # a client is left out, by name, if not for numbers not finite


class Diverged(RuntimeError):
    """Training has left the finite numbers."""


def traffic(algorithm: Algorithm, shared: int, trained: int) -> tuple[int, int]:
    """Bytes that a client sends and is sent in a round, of a model that shares so many numbers and trains so many."""
    correct = algorithm.correct
    up = FLOAT * shared if algorithm.compress is None else algorithm.compress.bytes(shared)
    told = correct is not None and correct.start(torch.zeros(0)) is not None
    reported = correct is not None and correct.reports
    return up + FLOAT * trained * reported, FLOAT * shared + FLOAT * trained * told


def nothing(weights: Tensor) -> Aggregate:
    """The result of a round in which chance has chosen nobody."""
    none = np.zeros(0)
    return Aggregate(torch.zeros_like(weights), None, none.astype(bool), none, none, {})
