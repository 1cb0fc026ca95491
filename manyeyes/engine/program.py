"""A round as work for lanes: which clients run side by side, in which lane, and in batches of which size.

Pure host data and a pure function of the plan, so that a run repeats bit for bit. Axes as in `algorithm`; L lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from manyeyes.algorithm import Client
from manyeyes.engine.sharing import OVERHEAD
from manyeyes.population import Ints

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)  # clients side by side: each shape is compiled once
ALIKE = 0.75  # clients share a group when the shortest takes at least this share of the longest's steps


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that step together; `width` counts the empty places too."""

    places: tuple[int, ...]  # of its clients in the plan
    width: int
    batches: tuple[int, ...]  # size of each step's batches, padding included

    @property
    def cost(self) -> float:
        return self.width * sum(OVERHEAD + size for size in self.batches)


@dataclass(frozen=True)
class Stretch:
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


def lengths(client: Client) -> Ints:
    """How many places of each batch are taken [S]."""
    real = client.rows_SB >= 0
    return np.where(real.any(1), real.shape[1] - real[:, ::-1].argmax(1), 0)


def make_groups(clients: Sequence[Client], most: int, exact: bool) -> list[Group]:
    """Clients of about as many steps together, at most so many; `exact` batches are padded by nothing."""
    sizes = [lengths(client) for client in clients]
    order = sorted(range(len(clients)), key=lambda k: (-len(sizes[k]), -int(sizes[k].sum()), k))
    groups = []
    while order:
        longest = len(sizes[order[0]])
        alike = next((n for n, k in enumerate(order) if len(sizes[k]) < ALIKE * longest), len(order))
        members, order = order[: min(alike, most)], order[min(alike, most) :]
        width = min(most, next(width for width in (*WIDTHS, most) if width >= len(members)))
        full = max(clients[k].rows_SB.shape[1] for k in members)
        needs = np.zeros(longest, np.int64)
        for k in members:
            needs[: len(sizes[k])] = np.maximum(needs[: len(sizes[k])], sizes[k])
        batches = tuple(int(need) if exact else bucket(int(need), full) for need in needs)
        groups.append(Group(tuple(members), width, batches))
    return groups


def bucket(need: int, full: int) -> int:
    """The size of the batch that so many examples run in: 1, 2, 3, 4, 6, 8, 12, 16, ... or a full batch."""
    need = max(1, need)
    power = 1 << (need - 1).bit_length()
    return min(full, power * 3 // 4 if need <= power * 3 // 4 else power)


def cut(share: Sequence[Group], room: int) -> Iterator[list[Stretch]]:
    """A lane's steps in pieces of at most `room`; a group may run over from one into the next."""
    piece, left = list[Stretch](), room
    for group in share:
        first = 0
        while first < len(group.batches):
            last = min(len(group.batches), first + left)
            piece.append(Stretch(group, first, last))
            left -= last - first
            first = last
            if not left:
                yield piece
                piece, left = [], room
    if piece:
        yield piece
