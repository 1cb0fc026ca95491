"""The ranks engine and images that are read ahead: its processes find them in memory, whichever store they are of."""

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
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.store import images as raw
from manyeyes.data.store.hdf5 import Hdf5Images
from manyeyes.data.store.images import JpegImages, MemoryMappedImages, encode
from manyeyes.engines.images import ImagePrefetcher
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from tests.engines.multiprocess_runs import IMAGES, NEEDS_WORKERS, POPULATION, begin, linear, pids, ranks

pytestmark = NEEDS_WORKERS


class Store:
    """Images that are read when they are asked for; it keeps in a file who asked for which."""

    shape, dtype = IMAGES.shape, IMAGES.dtype

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        with self.log.open("a") as file:
            file.write(json.dumps([threading.current_thread().name.split("_")[0], np.asarray(rows).tolist()]) + "\n")
        return IMAGES[rows]

    def asked(self, thread: str) -> list[list[int]]:
        lines = map(json.loads, self.log.read_text().splitlines())
        return [rows for name, rows in lines if name == thread]


def play_ahead(
    images: Any, most: int, rounds: int, on_round: Callable[[MultiprocessEngine], None] = lambda engine: None
) -> Tensor:
    """A game with images read ahead; the weights at its end."""
    held = replace(POPULATION, images=images)
    algorithm = fedavg(cohort_size=3, batch_size=4)
    ahead = ImagePrefetcher(held, lambda round: plan_round(algorithm, held, 0, round), rounds, most)
    state = begin(algorithm, linear())
    with ranks(linear(), population=replace(held, images=ahead), augment=Preprocess()) as engine, ahead:
        for round in range(rounds):
            plan = ahead.plan(round)
            state, _ = run_round(algorithm, state, POPULATION, engine, {}, 0, plan)
            on_round(engine)
    return state.weights


def rows_of(round: int) -> list[int]:
    plan = plan_round(fedavg(cohort_size=3, batch_size=4), POPULATION, 0, round)
    return sorted(
        int(POPULATION.image_indices[e]) for c in plan.clients for e in c.example_indices_SB.ravel() if e >= 0
    )


def test_after_the_first_round_workers_find_all_images_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "log")
    found = play_ahead(store, 2**20, 5)
    assert sorted(row for rows in store.asked("MainThread") for row in rows) == rows_of(0)
    assert store.asked("prefetch") == [rows_of(round) for round in (1, 2, 3, 4)]
    assert torch.equal(found, play_ahead(Store(tmp_path / "other"), 0, 5))


def test_workers_read_what_is_beyond_the_bound(tmp_path: Path) -> None:
    store = Store(tmp_path / "log")
    found = play_ahead(store, 5 * IMAGES[0].nbytes, 2)
    assert [len(rows) for rows in store.asked("prefetch")] == [5]
    assert sorted(row for rows in store.asked("MainThread") for row in rows) == sorted(
        rows_of(0) + list(set(rows_of(1)) - set(store.asked("prefetch")[0]))
    )
    assert torch.equal(found, play_ahead(Store(tmp_path / "other"), 0, 2))


def test_a_replacement_finds_the_images_too(tmp_path: Path) -> None:
    """Killed after every round, so that each is forked beside the thread that reads."""

    def kill(engine: MultiprocessEngine) -> None:
        os.kill(pids(engine)[0], signal.SIGKILL)

    store = Store(tmp_path / "log")
    found = play_ahead(store, 2**20, 5, kill)
    assert sorted(row for rows in store.asked("MainThread") for row in rows) == rows_of(0)
    assert torch.equal(found, play_ahead(Store(tmp_path / "other"), 0, 5))


def stored(kind: str, folder: Path) -> Any:
    if kind == "raw":
        np.save(folder / "images.npy", IMAGES)
        return MemoryMappedImages(folder / "images.npy")
    if kind == "encoded":
        parts = [encode(image) for image in IMAGES]
        (folder / "images").write_bytes(b"".join(parts))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, parts)]))
        return JpegImages(folder / "images", folder / "offsets.npy", 8, 8)
    with h5py.File(folder / "images.h5", "w") as file:
        file.create_dataset("all/images", data=IMAGES, chunks=(1, 8, 8, 3), compression="gzip")
    return Hdf5Images(folder / "images.h5", ("all",), np.array([0, 60]), np.array([-1]), (8, 8, 3))


@pytest.mark.parametrize("kind", ["raw", "encoded", "hdf5"])
@pytest.mark.parametrize("most", [0, 5])
def test_every_store_can_be_read_by_parent_and_workers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    monkeypatch.setattr(raw, "FEW", 0)  # threads, however little is read
    images = stored(kind, tmp_path)
    pixels = images[np.arange(60)]  # and it has been read before the fork
    found = play_ahead(images, most * IMAGES[0].nbytes, 6, lambda engine: images[np.arange(60)])
    np.testing.assert_array_equal(images[np.arange(60)], pixels)
    assert torch.equal(found, play_ahead(pixels, 0, 6))
