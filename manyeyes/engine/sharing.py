"""Sharing work out: the most costly first, each to the share that has the least so far."""

from __future__ import annotations

from collections.abc import Sequence

from manyeyes.algorithm import Client


def share_out(costs: Sequence[float], shares: int) -> list[list[int]]:
    """The places of each share, those that cost most first."""
    loads, found = [0.0] * shares, [list[int]() for _ in range(shares)]
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        least = loads.index(min(loads))
        loads[least] += costs[place]
        found[least].append(place)
    return found


def share_clients(clients: Sequence[Client], shares: int) -> list[list[int]]:
    """The clients of each share, by the examples that they read, in the order of the plan."""
    costs = [int((c.rows_SB >= 0).sum()) + (0 if c.whole is None else len(c.whole)) for c in clients]
    return [sorted(share) for share in share_out(costs, shares)]
