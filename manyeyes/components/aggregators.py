"""How the clients' updates become one, where some of them may be wrong on purpose; without, they are summed by weight.

Each part looks at every client's update [K, W]: memory grows with the cohort, which the sum's does not. Coordinates
are worked through in pieces, so nothing else of that size is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.components.client_weighting import WeightUniformly
from manyeyes.components.validation import require_int
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import register

MAX_SORTED_ELEMENTS = 2**22  # numbers that are sorted or compared at once


@register("aggregator", "median")
@dataclass(frozen=True)
class Median:
    """The median of each coordinate (Yin et al. 2018): right while fewer than half of the clients are wrong."""

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return _refuse(algorithm, "the median")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {}

    def aggregate(
        self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clients = len(updates_KW)
        return _middle(updates_KW, (clients - 1) // 2), state


@register("aggregator", "trimmed_mean")
@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without the `share` lowest and the `share` highest (Yin et al. 2018)."""

    trim_fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.trim_fraction < 0.5:
            raise ValueError(
                f"the trimmed share is {self.trim_fraction}: it is cut off at both ends, so give one below 0.5"
            )

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return _refuse(algorithm, "the trimmed mean")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {}

    def aggregate(
        self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return _middle(updates_KW, int(self.trim_fraction * len(updates_KW))), state


@register("aggregator", "krum")
@register("aggregator", "multi_krum", num_selected=5)
@dataclass(frozen=True)
class Krum:
    """The update nearest to its neighbours, or the mean of the `chosen` nearest ones (Blanchard et al. 2017).

    An update's score is the sum of its squared distances to the K - f - 2 others that are nearest, where f clients may
    be wrong; the least score wins.
    """

    num_malicious: int = 1  # f
    num_selected: int = 1  # above 1: multi-Krum

    def __post_init__(self) -> None:
        require_int("Krum's wrong clients", self.num_malicious, 0)
        require_int("Krum's chosen clients", self.num_selected, 1)

    @property
    def min_clients(self) -> int:
        """How many clients it takes: Krum's promise needs 2 f + 3."""
        return max(2 * self.num_malicious + 3, self.num_selected)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        clients = getattr(algorithm.sampler, "cohort_size", len(population.user_ids))
        if clients < self.min_clients:
            return (
                f"Krum that withstands {self.num_malicious} wrong clients and chooses {self.num_selected} needs {self.min_clients} a "
                f"round, and the cohort is {clients}: choose a larger one"
            )
        return _refuse(algorithm, "Krum")

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {}

    def aggregate(
        self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        best = self.scores(updates_KW).argsort(stable=True)[: self.num_selected]
        return updates_KW[best].mean(0), state

    def scores(self, updates_KW: Tensor) -> Tensor:
        """Of each client; where many were left out, over as many neighbours as there are."""
        clients = len(updates_KW)
        squares = updates_KW.new_zeros(clients, clients, dtype=torch.float64)
        for piece in _pieces(updates_KW):
            squares += torch.cdist(piece, piece, compute_mode="donot_use_mm_for_euclid_dist").double() ** 2
        neighbours = max(clients - self.num_malicious - 2, 1)
        return squares.sort(1).values[:, 1 : 1 + neighbours].sum(1)  # the nearest is the update itself


def _middle(updates_KW: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` lowest and highest."""
    kept = slice(cut, len(updates_KW) - cut)
    return torch.cat([piece.sort(0).values[kept].mean(0) for piece in _pieces(updates_KW)])


def _pieces(updates_KW: Tensor) -> Iterator[Tensor]:
    yield from updates_KW.split(max(1, MAX_SORTED_ELEMENTS // len(updates_KW)), 1)


def _refuse(algorithm: Algorithm, name: str) -> str | None:
    if algorithm.client_weighting != WeightUniformly():
        return f"{name} counts every client alike, or a lie about its size would count: set weigh to equally"
    if algorithm.correction is not None and algorithm.correction.uploads:
        return f"{type(algorithm.correction).__name__} sums what clients report beside updates: {name} cannot guard it"
    if algorithm.privacy is not None:
        return f"the noise of privacy is made for a sum, and {name} is none: leave one of them out"
    return None
