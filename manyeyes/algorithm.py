"""A federated algorithm: the slots that make it, and what the server keeps and tells of a round (`manyeyes.round`).

The round is Algorithm 1 of Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution"
(2020): select clients, update locally (`manyeyes.work`), aggregate, step the server. Axes: K clients, S steps, B
examples a batch, C classes, P trained parameters, W all shared numbers (P, then live BatchNorm statistics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.population import Floats, Ints, Population
from manyeyes.work import Aggregate, Compress, Correction, Local, Personal, Plan, Work

FLOAT = 4  # bytes of a number that travels as it is
SEEING = ("cohort", "weigh", "reweigh", "compress")  # slots that are given more than one user's data
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


class Server(Protocol):
    """How the server steps, given the aggregated update g = theta_t - theta of the clients."""

    def start(self, theta: Tensor) -> dict[str, Tensor]: ...

    def step(
        self, theta: Tensor, update: Tensor, state: dict[str, Tensor], round: int
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


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

    @property
    def covered(self) -> Mapping[str, tuple[type, ...]]:
        """The classes that the guarantee holds for, by slot, of the slots that are given more than one user's data."""

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
        check_private(self)  # last: what components say can add refusals and take none away


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


def check_private(algorithm: Algorithm) -> None:
    """Refuse what the privacy guarantee does not hold for, whatever the components say of themselves.

    Types are compared exactly: a subclass may do anything.
    """
    if algorithm.privacy is None:
        return
    if algorithm.aggregate is not None:
        raise ValueError(
            f"privacy adds noise to the sum of clipped updates, and aggregate={type(algorithm.aggregate).__name__} "
            "would replace that sum: leave out aggregate"
        )
    for slot in SEEING:
        part, covered = getattr(algorithm, slot), algorithm.privacy.covered.get(slot, ())
        if part is not None and not any(type(part) is kind for kind in covered):
            names = ", ".join(kind.__name__ for kind in covered)
            raise ValueError(
                f"privacy has no guarantee for {slot}={type(part).__module__}.{type(part).__qualname__}: "
                + (f"set {slot} to {names} of manyeyes.parts" if names else f"leave out {slot}")
            )
    correct = algorithm.correct
    if correct is not None and (correct.reports or correct.start(torch.zeros(0)) is not None):
        raise ValueError(
            f"privacy protects updates alone, and correct={type(correct).__name__} keeps more at the server: use a "
            "correction without reports and server state"
        )


class Diverged(RuntimeError):
    """Training has left the finite numbers."""


def traffic(algorithm: Algorithm, shared: int, trained: int) -> tuple[int, int]:
    """Bytes that a client sends and is sent in a round, of a model that shares so many numbers and trains so many."""
    correct = algorithm.correct
    up = FLOAT * shared if algorithm.compress is None else algorithm.compress.bytes(shared)
    told = correct is not None and correct.start(torch.zeros(0)) is not None
    reported = correct is not None and correct.reports
    return up + FLOAT * trained * reported, FLOAT * shared + FLOAT * trained * told
