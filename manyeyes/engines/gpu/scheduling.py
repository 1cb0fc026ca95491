"""A round as work for lanes: which clients run side by side, in which lane, and in batches of which size.

Pure host data and a pure function of the plan, so that a run repeats bit for bit. Axes as in `algorithm`; L lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from manyeyes.core.plan import ClientPlan
from manyeyes.core.population import Ints
from manyeyes.engines.load_balancing import OVERHEAD

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)  # clients side by side: each shape is compiled once
ALIKE = 0.75  # clients share a group when the shortest takes at least this share of the longest's steps


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that step together; `width` counts the empty places too."""

    client_indices: tuple[int, ...]  # of its clients in the plan
    width: int
    batches: tuple[int, ...]  # size of each step's batches, padding included

    @property
    def cost(self) -> float:
        return self.width * sum(OVERHEAD + size for size in self.batches)


@dataclass(frozen=True)
class StepRange:
    """Some consecutive steps of a group in a lane."""

    group: Group
    first: int
    last: int

    @property
    def begins(self) -> bool:
        return self.first == 0

    @property
    def ends(self) -> bool:
        return self.last == len(self.group.batches)


def batch_sizes(rows_SB: Ints) -> Ints:
    """How many places of each batch are taken [S]."""
    real = rows_SB >= 0
    return np.where(real.any(1), real.shape[1] - real[:, ::-1].argmax(1), 0)


def make_groups(clients: Sequence[ClientPlan], most: int, exact: bool) -> list[Group]:
    """Clients of about as many steps together, at most so many; `exact` batches are padded by nothing."""
    order = sorted(range(len(clients)), key=lambda k: (-clients[k].num_steps, -clients[k].num_images))
    steps, full = [clients[k].num_steps for k in order], clients[0].example_indices_SB.shape[1]
    shorter = [-taken for taken in steps]
    firsts = [0]  # of each group, in this order
    while firsts[-1] < len(order):
        alike = bisect_right(shorter, -ALIKE * steps[firsts[-1]], firsts[-1])
        firsts.append(min(alike, firsts[-1] + most))
    # all groups' steps in one array, and in it the place of each client's first one
    begins = np.cumsum([0, *(steps[first] for first in firsts[:-1])])
    begin_K = np.repeat(begins[:-1], np.diff(firsts))
    place_T = np.arange(sum(steps)) + np.repeat(begin_K - np.cumsum([0, *steps[:-1]]), steps)
    needs = np.zeros(begins[-1], np.int64)
    np.maximum.at(needs, place_T, batch_sizes(np.concatenate([clients[k].example_indices_SB for k in order])))
    sizes = {need: need if exact else bucket(need, full) for need in set(needs.tolist())}
    batches = [sizes[need] for need in needs.tolist()]
    return [
        Group(
            client_indices=tuple(order[first:last]),
            width=min(most, next(width for width in (*WIDTHS, most) if width >= last - first)),
            batches=tuple(batches[begin:end]),
        )
        for (first, last), (begin, end) in zip(pairwise(firsts), pairwise(begins.tolist()), strict=True)
    ]


def bucket(need: int, full: int) -> int:
    """The size of the batch that so many examples run in: 1, 2, 3, 4, 6, 8, 12, 16, ... or a full batch."""
    need = max(1, need)
    power = 1 << (need - 1).bit_length()
    return min(full, power * 3 // 4 if need <= power * 3 // 4 else power)


def cut(share: Sequence[Group], room: int) -> Iterator[list[StepRange]]:
    """A lane's steps in pieces of at most `room`; a group may run over from one into the next."""
    piece, left = list[StepRange](), room
    for group in share:
        first = 0
        while first < len(group.batches):
            last = min(len(group.batches), first + left)
            piece.append(StepRange(group, first, last))
            left -= last - first
            first = last
            if not left:
                yield piece
                piece, left = [], room
    if piece:
        yield piece
