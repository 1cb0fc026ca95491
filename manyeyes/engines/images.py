"""Images during training: on the device, or prefetched from disk for the next round."""

import mmap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Ints, Population, take_images

AUTO_MEMORY_FRACTION = 0.6  # of the free memory that `auto` fills with images: the rest is for training
LOAD_CHUNK_BYTES = 2**28  # that are on the host at a time while images are loaded
READ_CHUNK_BYTES = 2**26  # that are read between two checks of whether the run has stopped
YIELD_SECONDS = 0.001  # between two chunks, or a thread that waits to fork would hardly ever get the lock


@dataclass(frozen=True, eq=False)
class DeviceImages:
    """Images as one uint8 tensor [N, H, W, 3]; they can be indexed as an array, too."""

    tensor: Tensor
    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        return self.take(np.arange(len(self))[rows]).cpu().numpy()

    def take(self, rows: Ints, device: torch.device | None = None) -> Tensor:
        """Return the images of these rows, by default where they are."""
        images = self.tensor[torch.from_numpy(rows).to(self.tensor.device)]
        return images if device is None else images.to(device)


def place_images(populations: Sequence[Population], storage: str, device: torch.device) -> list[Population]:
    """Return the populations with their images on the `gpu`, or left on the `cpu`; `auto`: on a GPU, those that fit."""
    if storage == "cpu" or device.type != "cuda":  # a CPU's memory is the host's
        return list(populations)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    sizes = [image_bytes(population) for population in populations]
    if storage == "gpu" and sum(sizes) > free_bytes:
        needed, free = (f"{size / 2**30:.1f} GiB" for size in (sum(sizes), free_bytes))
        problem = f"engine.image_storage=gpu needs {needed} for the images and {device} has {free} free"
        raise ValueError(f"{problem}: choose auto or cpu.")
    budget, placed = free_bytes if storage == "gpu" else AUTO_MEMORY_FRACTION * free_bytes, []
    for population, size in zip(populations, sizes, strict=True):
        fits = size <= budget
        budget -= size if fits else 0
        placed.append(load_to_device(population, device) if fits else population)
    return placed


def image_bytes(population: Population) -> int:
    """Return the size of the population's images, each counted once."""
    return len(np.unique(population.image_indices)) * int(np.prod(population.image_shape))


def load_to_device(population: Population, device: torch.device, chunk_bytes: int = LOAD_CHUNK_BYTES) -> Population:
    """Return the population with its own images on the device, read in the order of the source, chunk by chunk."""
    rows, image_indices = np.unique(population.image_indices, return_inverse=True)
    tensor = torch.empty((len(rows), *population.image_shape), dtype=torch.uint8, device=device)
    step = max(1, chunk_bytes // int(np.prod(population.image_shape)))
    for first in range(0, len(rows), step):
        tensor[first : first + step] = take_images(population.images, rows[first : first + step])
    return replace(population, images=DeviceImages(tensor), image_indices=image_indices)


@dataclass(frozen=True, eq=False)
class PrefetchBuffer:
    """The content of one half of the memory: its i-th image is image `rows[i]` of the source."""

    half: int
    rows: Ints  # in rising order


class ImagePrefetcher:
    """The images of a population; in a `with` statement the next round's are prefetched.

    Up to `max_bytes` of each of two rounds are in memory; other images are read when they are needed. Processes that
    are forked from this one share the memory: with this one's `buffer` they find the same images.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, population: Population, plan: Callable[[int], RoundPlan], rounds: int, max_bytes: int) -> None:
        self._population, self._plan, self._rounds = population, plan, rounds
        self._images = population.images
        image_bytes = int(np.prod(self.shape[1:]))
        count = min(max_bytes // image_bytes, len(self), len(population))
        memory = np.frombuffer(mmap.mmap(-1, max(1, 2 * count * image_bytes)), np.uint8)  # uses RAM once written
        self._halves = memory[: 2 * count * image_bytes].reshape(2, count, *self.shape[1:])
        self.buffer: PrefetchBuffer | None = None
        self.fork_lock = threading.Lock()  # held while the thread works, so that no other lock is held during a fork
        self._next: Future[tuple[RoundPlan, PrefetchBuffer]] | None = None
        self._stopped = threading.Event()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._images.shape)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: Ints) -> NDArray[np.uint8]:
        buffer = self.buffer
        if buffer is None or not len(buffer.rows):
            return self._read_rows(rows)
        index = np.searchsorted(buffer.rows, rows).clip(max=len(buffer.rows) - 1)
        pixels, is_missing = self._halves[buffer.half][index], buffer.rows[index] != rows
        if is_missing.any():
            pixels[is_missing] = self._read_rows(rows[is_missing])
        return pixels

    def _read_rows(self, rows: Ints) -> NDArray[np.uint8]:
        return take_images(self._images, rows).numpy()

    def plan(self, round: int) -> RoundPlan:
        """Return the plan of a round, whose images are now in memory, and start to read those of the next round."""
        plan, self.buffer = self._next.result() if self._next else (None, None)
        if plan is None or plan.round != round:  # the first round of a run: nothing trained meanwhile
            plan, self.buffer = self._plan(round), None
        self._next = None
        if round + 1 < self._rounds:
            self._next = self._thread.submit(self._read, round + 1)
        return plan

    def _read(self, round: int) -> tuple[RoundPlan, PrefetchBuffer]:
        with self.fork_lock:
            plan = self._plan(round)
        pixels = self._halves[round % 2]  # the other half is that of the round that trains
        rows = np.sort(_rows_in_order(plan, self._population)[: len(pixels)])
        step = max(1, READ_CHUNK_BYTES // int(np.prod(self.shape[1:])))
        for first in range(0, len(rows), step):
            if self._stopped.is_set():
                break
            with self.fork_lock:
                chunk = rows[first : first + step]
                pixels[first : first + len(chunk)] = self._read_rows(chunk)
            time.sleep(YIELD_SECONDS)
        return plan, PrefetchBuffer(round % 2, rows)

    def __enter__(self) -> Self:
        self._stopped.clear()
        self._thread = ThreadPoolExecutor(1, "prefetch")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        self.buffer = self._next = None


class PlanPrefetcher:
    """Plans the next round while the device works on this one, and passes the plan to the engine's `prefetch`."""

    def __init__(self, plan: Callable[[int], RoundPlan], rounds: int, prefetch: Callable[[RoundPlan], None]) -> None:
        self._plan, self._rounds, self._prefetch = plan, rounds, prefetch
        self._round = 0
        self._next: RoundPlan | None = None

    def plan(self, round: int) -> RoundPlan:
        plan = self._next
        self._round, self._next = round, None
        return plan if plan is not None and plan.round == round else self._plan(round)

    def prepare(self) -> None:
        """Plan the next round, once however often this is called."""
        if self._next is None and self._round + 1 < self._rounds:
            self._next = self._plan(self._round + 1)
            self._prefetch(self._next)


def reads_from_disk(images: Any) -> bool:
    """Return whether images are elsewhere than in memory."""
    return isinstance(images, np.memmap) or not isinstance(images, np.ndarray | DeviceImages)


def _rows_in_order(plan: RoundPlan, population: Population) -> Ints:
    """Return the rows of all images of a round, each once, in the order in which they are first needed."""
    examples = [np.empty(0, np.int64)]  # random sampling may have selected no clients
    for c in plan.clients:
        examples.append(c.example_indices_SB[c.example_indices_SB >= 0] if c.full_indices is None else c.full_indices)
    rows = population.image_indices[np.concatenate(examples)]
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]
