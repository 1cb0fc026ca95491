"""Reading ahead: while a round trains, the next one is planned and its images are read from the store."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Ints, Population
from manyeyes.engines.device_images import DeviceImages

CHUNK = 2**26  # bytes that are read between two looks at whether the run has stopped


@dataclass(frozen=True, eq=False)
class PrefetchBuffer:
    """What is in one half of the memory: its i-th image is image `rows[i]` of the store."""

    half: int
    rows: Ints  # in rising order


class ImagePrefetcher:
    """The population's images, to be indexed as they are; in a `with` statement they are read ahead, round by round.

    At most `most` bytes of each of two rounds are held. Images beyond that are read when they are asked for. The memory
    is shared with processes that are forked from this one: one that is given this one's `shelf` finds the same images.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, population: Population, plan: Callable[[int], RoundPlan], rounds: int, most: int) -> None:
        self._population, self._plan, self._rounds = population, plan, rounds
        size = int(np.prod(self.shape[1:]))
        count = min(most // size, len(self), len(population))
        memory = np.frombuffer(mmap.mmap(-1, max(1, 2 * count * size)), np.uint8)  # takes no room until it is written
        self._halves = memory[: 2 * count * size].reshape(2, count, *self.shape[1:])
        self.shelf: PrefetchBuffer | None = None
        self.still = threading.Lock()  # held while the thread works: whoever forks waits, so no lock is in mid-air
        self._next: Future[tuple[RoundPlan, PrefetchBuffer]] | None = None
        self._stopped = threading.Event()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._population.images.shape)

    def __len__(self) -> int:
        return len(self._population.images)

    def __getitem__(self, rows: Ints) -> NDArray[np.uint8]:
        images, shelf = self._population.images, self.shelf
        if shelf is None or not len(shelf.rows):
            return np.asarray(images[rows])
        places = np.searchsorted(shelf.rows, rows).clip(max=len(shelf.rows) - 1)
        pixels, missing = self._halves[shelf.half][places], shelf.rows[places] != rows
        if missing.any():
            pixels[missing] = images[rows[missing]]
        return pixels

    def plan(self, round: int) -> RoundPlan:
        """The plan of a round, whose images are now at hand; the next round's are begun."""
        plan, self.shelf = self._next.result() if self._next else (None, None)
        if plan is None or plan.round != round:  # the first of a run: nothing trains meanwhile
            plan, self.shelf = self._plan(round), None
        self._next = None
        if round + 1 < self._rounds:
            self._next = self._thread.submit(self._read, round + 1)
        return plan

    def _read(self, round: int) -> tuple[RoundPlan, PrefetchBuffer]:
        with self.still:
            plan = self._plan(round)
        pixels = self._halves[round % 2]  # the other half is that of the round that trains
        rows = np.sort(_in_order(plan, self._population)[: len(pixels)])
        step = max(1, CHUNK // int(np.prod(self.shape[1:])))
        for first in range(0, len(rows), step):
            if self._stopped.is_set():
                break
            with self.still:
                some = rows[first : first + step]
                pixels[first : first + len(some)] = self._population.images[some]
            time.sleep(0.001)  # or whoever waits to fork would hardly ever be let in
        return plan, PrefetchBuffer(round % 2, rows)

    def __enter__(self) -> ImagePrefetcher:
        self._stopped.clear()
        self._thread = ThreadPoolExecutor(1, "prefetch")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        self.shelf = self._next = None


class PlanPrefetcher:
    """The next round, planned by `prepare` while a device works on this one."""

    def __init__(self, plan: Callable[[int], RoundPlan], rounds: int, then: Callable[[RoundPlan], None]) -> None:
        self._plan, self._rounds, self._then = plan, rounds, then
        self._round = 0
        self._next: RoundPlan | None = None

    def plan(self, round: int) -> RoundPlan:
        plan = self._next
        self._round, self._next = round, None
        return plan if plan is not None and plan.round == round else self._plan(round)

    def prepare(self) -> None:
        if self._next is None and self._round + 1 < self._rounds:  # clients that fine-tune ask many times a round
            self._next = self._plan(self._round + 1)
            self._then(self._next)


def reads_from_disk(images: Any) -> bool:
    """Whether images are elsewhere than in memory."""
    return not isinstance(images, np.ndarray | DeviceImages) or isinstance(images, np.memmap)


def _in_order(plan: RoundPlan, population: Population) -> Ints:
    """The rows of all images of a round, each once, in the order in which they are first asked for."""
    asked: list[Ints] = [np.empty(0, np.int64)]  # chance may have chosen nobody
    for client in plan.clients:
        asked += (
            [client.example_indices_SB[client.example_indices_SB >= 0]]
            if client.full_indices is None
            else [client.full_indices]
        )
    rows = population.image_indices[np.concatenate(asked)]
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]
