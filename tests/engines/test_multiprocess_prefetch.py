"""The multiprocess engine with prefetched images: workers find them in memory, for every kind of image store."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedavg
from manyeyes.core.plan import plan_round
from manyeyes.core.round import run_round
from manyeyes.data.store import images as image_store
from manyeyes.data.store.hdf5 import Hdf5Images
from manyeyes.data.store.images import JpegImages, MemoryMappedImages, encode
from manyeyes.engines.images import ImagePrefetcher
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from tests.engines.engine_runs import initial_state, make_setup
from tests.engines.multiprocess_runs import IMAGES, NEEDS_WORKERS, POPULATION, linear, worker_pids

pytestmark = NEEDS_WORKERS


ALGORITHM = fedavg(cohort_size=3, batch_size=4)


class LoggingImages:
    """Images that are read on demand; a file logs which thread read which rows."""

    shape, dtype = IMAGES.shape, IMAGES.dtype

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, rows: Any) -> np.ndarray:
        with self.log.open("a") as file:
            file.write(json.dumps([threading.current_thread().name.split("_")[0], np.asarray(rows).tolist()]) + "\n")
        return IMAGES[rows]

    def reads(self, thread: str) -> list[list[int]]:
        """Return the rows of each read of a thread, by name; workers read in a thread called MainThread."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [rows for name, rows in lines if name == thread]


def train_with_prefetching(
    images: Any, max_bytes: int, num_rounds: int, on_round: Callable[[MultiprocessEngine], None] = lambda engine: None
) -> Tensor:
    """Return the weights after a run whose images are prefetched."""
    source = replace(POPULATION, images=images)
    prefetcher = ImagePrefetcher(source, lambda round: plan_round(ALGORITHM, source, 0, round), num_rounds, max_bytes)
    setup = make_setup(linear(), replace(source, images=prefetcher), workers=2)
    state = initial_state(ALGORITHM, linear())
    with MultiprocessEngine(replace(setup, prefetcher=prefetcher)) as engine, prefetcher:
        for round in range(num_rounds):
            plan = prefetcher.plan(round)
            state, _ = run_round(ALGORITHM, state, POPULATION, engine, {}, 0, plan)
            on_round(engine)
    return state.weights


def rows_of_round(round: int) -> list[int]:
    """Return the image rows of a round in rising order."""
    plan = plan_round(ALGORITHM, POPULATION, 0, round)
    return sorted(
        int(POPULATION.image_indices[e]) for c in plan.clients for e in c.example_indices_SB.ravel() if e >= 0
    )


@pytest.mark.slow
def test_after_the_first_round_workers_find_all_images_in_memory(tmp_path: Path) -> None:
    images = LoggingImages(tmp_path / "log")
    actual = train_with_prefetching(images, 2**20, 5)
    assert sorted(row for rows in images.reads("MainThread") for row in rows) == rows_of_round(0)
    assert images.reads("prefetch") == [rows_of_round(round) for round in (1, 2, 3, 4)]
    assert torch.equal(actual, train_with_prefetching(LoggingImages(tmp_path / "other"), 0, 5))


@pytest.mark.slow
def test_workers_read_what_exceeds_the_limit(tmp_path: Path) -> None:
    images = LoggingImages(tmp_path / "log")
    actual = train_with_prefetching(images, 5 * IMAGES[0].nbytes, 2)
    assert [len(rows) for rows in images.reads("prefetch")] == [5]
    assert sorted(row for rows in images.reads("MainThread") for row in rows) == sorted(
        rows_of_round(0) + list(set(rows_of_round(1)) - set(images.reads("prefetch")[0]))
    )
    assert torch.equal(actual, train_with_prefetching(LoggingImages(tmp_path / "other"), 0, 2))


@pytest.mark.slow
def test_a_worker_that_replaces_another_finds_the_images_in_memory(tmp_path: Path) -> None:
    """One is killed after every round, so that its replacement is forked while the prefetching thread reads."""

    def kill_one(engine: MultiprocessEngine) -> None:
        os.kill(worker_pids(engine)[0], signal.SIGKILL)

    images = LoggingImages(tmp_path / "log")
    actual = train_with_prefetching(images, 2**20, 5, kill_one)
    assert sorted(row for rows in images.reads("MainThread") for row in rows) == rows_of_round(0)
    assert torch.equal(actual, train_with_prefetching(LoggingImages(tmp_path / "other"), 0, 5))


def open_images(kind: str, folder: Path) -> Any:
    """Write the images in a format, and open them."""
    if kind == "raw":
        np.save(folder / "images.npy", IMAGES)
        return MemoryMappedImages(folder / "images.npy")
    if kind == "jpeg":
        encoded = [encode(image) for image in IMAGES]
        (folder / "images").write_bytes(b"".join(encoded))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, encoded)]))
        return JpegImages(folder / "images", 8, 8)
    with h5py.File(folder / "images.h5", "w") as file:
        file.create_dataset("all/images", data=IMAGES, chunks=(1, 8, 8, 3), compression="gzip")
    return Hdf5Images(folder / "images.h5", ("all",), np.array([0, 60]), np.array([-1]), (8, 8, 3))


@pytest.mark.fast_cases("5-raw")
@pytest.mark.parametrize("kind", ["raw", "jpeg", "hdf5"])
@pytest.mark.parametrize("num_prefetched", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_parent_and_workers_can_read_images_of_every_format_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, num_prefetched: int
) -> None:
    monkeypatch.setattr(image_store, "MIN_BYTES_FOR_THREADS", 0)
    images = open_images(kind, tmp_path)
    pixels = images[np.arange(60)]  # reads before the workers are forked, too
    actual = train_with_prefetching(images, num_prefetched * IMAGES[0].nbytes, 6, lambda engine: images[np.arange(60)])
    np.testing.assert_array_equal(images[np.arange(60)], pixels)
    assert torch.equal(actual, train_with_prefetching(pixels, 0, 6))
