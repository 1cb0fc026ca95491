"""A round as work for streams: which clients run side by side, in which stream, and in batches of which size.

Pure host data and a pure function of the plan, so that a run repeats bit for bit.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Ints
from manyeyes.engines.load_balancing import STEP_COST, balance

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)  # clients side by side: one compiled step for each
MIN_STEPS_FRACTION = 0.75  # of the longest client's steps, to share a group with it


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that step together; `width` counts empty positions too."""

    client_indices: tuple[int, ...]  # in the plan
    width: int
    batch_sizes: tuple[int, ...]  # of each step, padding included

    @property
    def cost(self) -> float:
        return self.width * sum(STEP_COST + size for size in self.batch_sizes)


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps of a group in a stream."""

    group: Group
    first: int
    last: int

    @property
    def begins(self) -> bool:
        return self.first == 0

    @property
    def ends(self) -> bool:
        return self.last == len(self.group.batch_sizes)


Schedule = list[list[list[StepRange]]]  # of each chunk of a round, of each stream


def make_schedule(plan: RoundPlan, num_streams: int, max_width: int, exact: bool, max_steps: int) -> Schedule:
    """Divide a round's clients among streams, in chunks of at most `max_steps` steps of each stream."""
    groups = make_groups(plan.clients, max_width, exact)
    streams = balance([group.cost for group in groups], [0.0] * num_streams)
    chunks = [cut([groups[index] for index in indices], max_steps) for indices in streams]
    return [[step_ranges or [] for step_ranges in chunk] for chunk in zip_longest(*chunks)]


def real_batch_sizes(indices_SB: Ints) -> Ints:
    """Return how many positions of each batch are used [S]."""
    is_real_SB = indices_SB >= 0
    return np.where(is_real_SB.any(1), is_real_SB.shape[1] - is_real_SB[:, ::-1].argmax(1), 0)


def make_groups(clients: Sequence[ClientPlan], max_width: int, exact: bool) -> list[Group]:
    """Group clients of about as many steps, at most `max_width` together; `exact` batches are not padded."""
    order = sorted(range(len(clients)), key=lambda k: (-clients[k].num_steps, -clients[k].num_images))
    num_steps, full_size = [clients[k].num_steps for k in order], clients[0].example_indices_SB.shape[1]
    negated_steps = [-steps for steps in num_steps]  # in rising order
    firsts = [0]  # of each group, in this order
    while firsts[-1] < len(order):
        end = bisect_right(negated_steps, -MIN_STEPS_FRACTION * num_steps[firsts[-1]], firsts[-1])
        firsts.append(min(end, firsts[-1] + max_width))
    # the steps of all groups in one array, and in it the position of each client's steps
    begins = np.cumsum([0, *(num_steps[first] for first in firsts[:-1])])
    begin_K = np.repeat(begins[:-1], np.diff(firsts))
    position_T = np.arange(sum(num_steps)) + np.repeat(begin_K - np.cumsum([0, *num_steps[:-1]]), num_steps)
    needed = np.zeros(begins[-1], np.int64)
    used = real_batch_sizes(np.concatenate([clients[k].example_indices_SB for k in order]))
    np.maximum.at(needed, position_T, used)
    padded = {size: size if exact else bucket(size, full_size) for size in set(needed.tolist())}
    sizes = [padded[size] for size in needed.tolist()]
    return [
        Group(
            client_indices=tuple(order[first:last]),
            width=min(max_width, next(width for width in (*WIDTHS, max_width) if width >= last - first)),
            batch_sizes=tuple(sizes[begin:end]),
        )
        for (first, last), (begin, end) in zip(pairwise(firsts), pairwise(begins.tolist()), strict=True)
    ]


def bucket(num_examples: int, full_size: int) -> int:
    """Return the size of the batch that examples run in: 1, 2, 3, 4, 6, 8, 12, 16, ... or a full batch."""
    num_examples = max(1, num_examples)
    power = 1 << (num_examples - 1).bit_length()
    return min(full_size, power * 3 // 4 if num_examples <= power * 3 // 4 else power)


def cut(groups: Sequence[Group], max_steps: int) -> Iterator[list[StepRange]]:
    """Yield a stream's steps in chunks of at most `max_steps`; a group may continue in the next chunk."""
    chunk, free = list[StepRange](), max_steps
    for group in groups:
        first = 0
        while first < len(group.batch_sizes):
            last = min(len(group.batch_sizes), first + free)
            chunk.append(StepRange(group, first, last))
            free -= last - first
            first = last
            if not free:
                yield chunk
                chunk, free = [], max_steps
    if chunk:
        yield chunk
