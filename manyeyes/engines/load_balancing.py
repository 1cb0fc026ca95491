"""Sharing work out: the most costly first, each to the share that has the least so far, or to several together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from manyeyes.core.plan import ClientPlan

OVERHEAD = 3.0  # what a step costs beyond its images, in images: 0.26 ms and 0.077 ms an image, ResNet18 on an H200
GAIN = 0.8  # a team must bring a client down to this share of its time


@dataclass(frozen=True)
class ClientCost:
    """What a client's work is: so many steps of so many images in all."""

    num_steps: int
    num_images: int

    @staticmethod
    def from_client(client: ClientPlan) -> ClientCost:
        whole = 0 if client.full_indices is None else len(client.full_indices)
        return ClientCost(client.num_steps, client.num_images + whole)

    @property
    def cost(self) -> float:
        """In images."""
        return self.num_images + OVERHEAD * self.num_steps

    def cost_in_group(self, members: int, agreeing: float) -> float:
        """For each of so many, who have a part of every batch and add up gradients at every step."""
        return self.num_steps * (OVERHEAD + agreeing + math.ceil(self.num_images / self.num_steps / members))


@dataclass
class Assignment:
    """Who does what: places of jobs, and ranks counted from 0."""

    unsplit: list[list[int]]  # the jobs that each rank does alone
    groups: list[tuple[int, list[int]]] = field(default_factory=list)  # a job, and the ranks that do it together
    loads: list[float] = field(default_factory=list)  # of each rank


def balance(costs: Sequence[float], shares: int) -> list[list[int]]:
    """The places of each share, those that cost most first."""
    return _greedy(range(len(costs)), costs, [0.0] * shares)


def balance_clients(clients: Sequence[ClientPlan], shares: int) -> list[list[int]]:
    """The clients of each share, by what they cost, in the order of the plan."""
    return [sorted(share) for share in balance([ClientCost.from_client(client).cost for client in clients], shares)]


def balance_with_groups(jobs: Sequence[ClientCost], ranks: int, agreeing: float = math.inf) -> Assignment:
    """Every job to one rank; but one longer than a rank's fair part, which all would wait for, to a team.

    `agreeing` is what the all-reduce of a team's step costs, in images. A rank is in one team at most.
    """
    fair, free = sum(job.cost for job in jobs) / ranks, list(range(ranks))
    loads, teams, rest = [0.0] * ranks, list[tuple[int, list[int]]](), []
    for place in sorted(range(len(jobs)), key=lambda place: -jobs[place].cost):
        members = _group_for(jobs[place], fair, len(free), agreeing) if jobs[place].cost > fair else 1
        if members == 1:
            rest.append(place)
            continue
        team, free = free[:members], free[members:]
        teams.append((place, team))
        for rank in team:
            loads[rank] = jobs[place].cost_in_group(members, agreeing)
    whole = _greedy(rest, [job.cost for job in jobs], loads)
    return Assignment([sorted(share) for share in whole], teams, loads)


def _group_for(job: ClientCost, fair: float, free: int, agreeing: float) -> int:
    """The smallest team that is done in fair time, else the quickest; 1 where none is worth it."""
    sizes = range(2, min(free, math.ceil(job.num_images / job.num_steps)) + 1)
    if not sizes or agreeing == math.inf:
        return 1
    times = [job.cost_in_group(members, agreeing) for members in sizes]
    done = next((members for members, time in zip(sizes, times, strict=True) if time <= fair), None)
    best = done or sizes[times.index(min(times))]
    return best if job.cost_in_group(best, agreeing) <= GAIN * job.cost else 1


def _greedy(places: Sequence[int], costs: Sequence[float], loads: list[float]) -> list[list[int]]:
    """Each place to the share that has the least so far; `loads` grow."""
    found = [list[int]() for _ in loads]
    for place in sorted(places, key=lambda place: -costs[place]):
        least = loads.index(min(loads))
        loads[least] += costs[place]
        found[least].append(place)
    return found
