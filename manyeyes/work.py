"""A client's part of a round: what it is told and by which parts it works, and the engine that turns plans into sums.

Axes: K clients, S steps, B examples a batch, P trained parameters, W all shared numbers (P, then live BatchNorm
statistics).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyeyes.population import Floats, Ints

Clients = Mapping[int, dict[str, Tensor]]  # what clients keep between rounds, by their number in `users`
ClientStore = MutableMapping[int, dict[str, Tensor]]
ALL, OWN, SHARED = 0, 1, 2  # what of the model moves in a step: everything, the personal layers alone, or the others


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


def nothing(weights: Tensor) -> Aggregate:
    """The result of a round in which chance has chosen nobody."""
    none = np.zeros(0)
    return Aggregate(torch.zeros_like(weights), None, none.astype(bool), none, none, {})
