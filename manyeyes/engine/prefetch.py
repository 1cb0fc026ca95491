"""Reading ahead: while a round trains, the next one is planned and its images are read from the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.algorithm import Plan
from manyeyes.engine.resident import Resident
from manyeyes.population import Ints, Population

CHUNK = 2**26  # bytes that are read between two looks at whether the run has stopped


@dataclass(frozen=True, eq=False)
class Shelf:
    """A round, and the images of it that are in memory: `pixels[i]` is image `rows[i]` of the store."""

    plan: Plan
    rows: Ints  # in rising order
    pixels: NDArray[np.uint8]


class Prefetch:
    """The population's images, to be indexed as they are; in a `with` statement they are read ahead, round by round.

    At most `most` bytes of each of two rounds are held. Images beyond that are read when they are asked for.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, population: Population, plan: Callable[[int], Plan], rounds: int, most: int) -> None:
        self._population, self._plan, self._rounds, self._most = population, plan, rounds, most
        self._shelf: Shelf | None = None
        self._next: Future[Shelf] | None = None
        self._stopped = threading.Event()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._population.images.shape)

    def __len__(self) -> int:
        return len(self._population.images)

    def __getitem__(self, rows: Ints) -> NDArray[np.uint8]:
        images, shelf = self._population.images, self._shelf
        if shelf is None or not len(shelf.rows):
            return np.asarray(images[rows])
        places = np.searchsorted(shelf.rows, rows).clip(max=len(shelf.rows) - 1)
        pixels, missing = shelf.pixels[places], shelf.rows[places] != rows
        if missing.any():
            pixels[missing] = images[rows[missing]]
        return pixels

    def plan(self, round: int) -> Plan:
        """The plan of a round, whose images are now at hand; the next round's are begun."""
        shelf = self._next.result() if self._next else None
        if shelf is None or shelf.plan.round != round:  # the first of a run: nothing trains meanwhile
            shelf = Shelf(self._plan(round), np.empty(0, np.int64), np.empty(0, np.uint8))
        self._shelf, self._next = shelf, None
        if round + 1 < self._rounds:
            self._next = self._thread.submit(self._read, round + 1)
        return shelf.plan

    def _read(self, round: int) -> Shelf:
        plan = self._plan(round)
        size = int(np.prod(self.shape[1:]))
        rows = np.sort(_in_order(plan, self._population)[: self._most // size])
        pixels = np.empty((len(rows), *self.shape[1:]), np.uint8)
        step = max(1, CHUNK // size)
        for first in range(0, len(rows), step):
            if self._stopped.is_set():
                break
            pixels[first : first + step] = self._population.images[rows[first : first + step]]
        return Shelf(plan, rows, pixels)

    def __enter__(self) -> Prefetch:
        self._stopped.clear()
        self._thread = ThreadPoolExecutor(1, "prefetch")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        self._shelf = self._next = None


def needs_reading(images: Any) -> bool:
    """Whether images are elsewhere than in memory."""
    return not isinstance(images, np.ndarray | Resident) or isinstance(images, np.memmap)


def _in_order(plan: Plan, population: Population) -> Ints:
    """The rows of all images of a round, each once, in the order in which they are first asked for."""
    asked: list[Ints] = []
    for client in plan.clients:
        asked += [client.rows_SB[client.rows_SB >= 0]] if client.whole is None else [client.whole]
    rows = population.rows[np.concatenate(asked)]
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]
