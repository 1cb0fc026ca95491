"""How a round is divided among workers by what its clients cost.

The most costly work comes first, each to the worker with the least so far, or to several workers together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from manyeyes.core.plan import ClientPlan

STEP_COST = 3.0  # of a step beyond its images, in images: 0.26 ms and 0.077 ms per image, ResNet18 on an H200
MAX_SPLIT_TIME_FRACTION = 0.8  # a group must bring a client down to this fraction of its time


@dataclass(frozen=True)
class ClientCost:
    """How much work a client is: its steps, and the images of all of them."""

    num_steps: int
    num_images: int

    @staticmethod
    def from_client(client: ClientPlan) -> ClientCost:
        num_full = 0 if client.full_indices is None else len(client.full_indices)
        return ClientCost(client.num_steps, client.num_images + num_full)

    @property
    def cost(self) -> float:
        """The cost in images."""
        return self.num_images + STEP_COST * self.num_steps

    def cost_in_group(self, num_members: int, allreduce_cost: float) -> float:
        """Return the cost for each member of a group, which has a part of every batch and sums gradients each step."""
        images_per_step = math.ceil(self.num_images / self.num_steps / num_members)
        return self.num_steps * (STEP_COST + allreduce_cost + images_per_step)


@dataclass
class Assignment:
    """Which rank trains which client: indices of clients, and ranks counted from 0."""

    unsplit: list[list[int]]  # the clients that each rank trains alone
    groups: list[tuple[int, list[int]]] = field(default_factory=list)  # a client, and the ranks that train it together
    loads: list[float] = field(default_factory=list)  # of each rank


def balance_clients(clients: Sequence[ClientPlan], num_workers: int) -> list[list[int]]:
    """Return the indices of each worker's clients, balanced by cost, in the order of the plan."""
    costs = [ClientCost.from_client(client).cost for client in clients]
    return [sorted(indices) for indices in balance(costs, [0.0] * num_workers)]


def balance_with_groups(costs: Sequence[ClientCost], num_ranks: int, allreduce_cost: float = math.inf) -> Assignment:
    """Assign each client to one rank, and one that takes longer than a fair part of the round to a group of ranks.

    `allreduce_cost` is the cost of the all-reduce of a group's step, in images. A rank is in one group at most.
    """
    fair_cost, free = sum(client.cost for client in costs) / num_ranks, list(range(num_ranks))
    loads, groups, rest = [0.0] * num_ranks, list[tuple[int, list[int]]](), list[int]()
    for index in sorted(range(len(costs)), key=lambda index: -costs[index].cost):
        client = costs[index]
        size = _group_size(client, fair_cost, len(free), allreduce_cost) if client.cost > fair_cost else 1
        if size == 1:
            rest.append(index)
            continue
        members, free = free[:size], free[size:]
        groups.append((index, members))
        for rank in members:
            loads[rank] = client.cost_in_group(size, allreduce_cost)
    unsplit = balance([client.cost for client in costs], loads, rest)
    return Assignment([sorted(indices) for indices in unsplit], groups, loads)


def _group_size(client: ClientCost, fair_cost: float, num_free: int, allreduce_cost: float) -> int:
    """Return the size of the smallest group that takes a fair part, else of the fastest; 1 where none is worth it."""
    sizes = range(2, min(num_free, math.ceil(client.num_images / client.num_steps)) + 1)
    if not sizes or allreduce_cost == math.inf:
        return 1
    group_costs = [client.cost_in_group(size, allreduce_cost) for size in sizes]
    smallest = next((size for size, cost in zip(sizes, group_costs, strict=True) if cost <= fair_cost), None)
    best = smallest or sizes[group_costs.index(min(group_costs))]
    return best if client.cost_in_group(best, allreduce_cost) <= MAX_SPLIT_TIME_FRACTION * client.cost else 1


def balance(costs: Sequence[float], loads: list[float], indices: Sequence[int] | None = None) -> list[list[int]]:
    """Return the indices for each worker, the most costly first; each worker's load grows."""
    assigned = [list[int]() for _ in loads]
    for index in sorted(range(len(costs)) if indices is None else indices, key=lambda index: -costs[index]):
        worker = loads.index(min(loads))
        loads[worker] += costs[index]
        assigned[worker].append(index)
    return assigned
