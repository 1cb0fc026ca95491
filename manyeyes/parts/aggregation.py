"""How the clients' updates become one, where some of them may be wrong on purpose; without, they are summed by weight.

Each part looks at every client's update [K, W]: memory grows with the cohort, which the sum's does not. Coordinates
are worked through in pieces, so nothing else of that size is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.algorithm import Algorithm
from manyeyes.parts.require import count
from manyeyes.parts.weighing import Equally
from manyeyes.population import Population

PIECE = 2**22  # numbers that are sorted or compared at once


@dataclass(frozen=True)
class Median:
    """The median of each coordinate (Yin et al. 2018): right while fewer than half of the clients are wrong."""

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        return _refuse(algorithm, "the median")

    def combine(self, updates_KW: Tensor) -> Tensor:
        clients = len(updates_KW)
        return _middle(updates_KW, (clients - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without the `share` lowest and the `share` highest (Yin et al. 2018)."""

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"the trimmed share is {self.share}: it is cut off at both ends, so give one below 0.5")

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        return _refuse(algorithm, "the trimmed mean")

    def combine(self, updates_KW: Tensor) -> Tensor:
        return _middle(updates_KW, int(self.share * len(updates_KW)))


@dataclass(frozen=True)
class Krum:
    """The update nearest to its neighbours, or the mean of the `chosen` nearest ones (Blanchard et al. 2017).

    An update's score is the sum of its squared distances to the K - f - 2 others that are nearest, where f clients may
    be wrong; the least score wins.
    """

    wrong: int = 1  # f
    chosen: int = 1  # above 1: multi-Krum

    def __post_init__(self) -> None:
        count("Krum's wrong clients", self.wrong, 0)
        count("Krum's chosen clients", self.chosen, 1)

    @property
    def least(self) -> int:
        """How many clients it takes: Krum's promise needs 2 f + 3."""
        return max(2 * self.wrong + 3, self.chosen)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        clients = getattr(algorithm.cohort, "clients", len(population.users))
        if clients < self.least:
            return (
                f"Krum that withstands {self.wrong} wrong clients and chooses {self.chosen} needs {self.least} a "
                f"round, and the cohort is {clients}: choose a larger one"
            )
        return _refuse(algorithm, "Krum")

    def combine(self, updates_KW: Tensor) -> Tensor:
        best = self.scores(updates_KW).argsort(stable=True)[: self.chosen]
        return updates_KW[best].mean(0)

    def scores(self, updates_KW: Tensor) -> Tensor:
        """Of each client; where many were left out, over as many neighbours as there are."""
        clients = len(updates_KW)
        squares = updates_KW.new_zeros(clients, clients, dtype=torch.float64)
        for piece in _pieces(updates_KW):
            squares += torch.cdist(piece, piece, compute_mode="donot_use_mm_for_euclid_dist").double() ** 2
        neighbours = max(clients - self.wrong - 2, 1)
        return squares.sort(1).values[:, 1 : 1 + neighbours].sum(1)  # the nearest is the update itself


def _middle(updates_KW: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` lowest and highest."""
    kept = slice(cut, len(updates_KW) - cut)
    return torch.cat([piece.sort(0).values[kept].mean(0) for piece in _pieces(updates_KW)])


def _pieces(updates_KW: Tensor) -> Iterator[Tensor]:
    yield from updates_KW.split(max(1, PIECE // len(updates_KW)), 1)


def _refuse(algorithm: Algorithm, name: str) -> str | None:
    if algorithm.weigh != Equally():
        return f"{name} counts every client alike, or a lie about its size would count: set weigh to equally"
    if algorithm.correct is not None and algorithm.correct.reports:
        return f"{type(algorithm.correct).__name__} sums what clients report beside updates: {name} cannot guard it"
    if algorithm.privacy is not None:
        return f"the noise of privacy is made for a sum, and {name} is none: leave one of them out"
    return None
