"""Prefetching: the same results, images in memory in time, limits that hold, and no thread left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import UniformSampler
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.store.images import MemoryMappedImages
from manyeyes.engines import images as engine_images
from manyeyes.engines.images import DeviceImages, ImagePrefetcher, PlanPrefetcher, reads_from_disk
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 3), dtype=np.uint8)
IMAGE_BYTES = PIXELS[0].nbytes
POPULATION = Population.from_arrays(
    PIXELS, SingleLabels(np.arange(60) % 3, tuple("abc")), np.random.default_rng(1).integers(0, 9, 60)
)
FEDAVG = fedavg(cohort_size=3, batch_size=4)


@dataclass
class RecordingImages:
    """Images that are read on demand; records which thread read which rows."""

    calls: list[tuple[str, list[int]]] = field(default_factory=list)
    on_read: Callable[[Ints], None] = lambda rows: None
    shape = PIXELS.shape
    dtype = PIXELS.dtype

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, rows: Any) -> np.ndarray:
        self.calls.append((threading.current_thread().name.split("_")[0], rows.tolist()))
        self.on_read(rows)
        return PIXELS[rows]

    def reads(self, thread: str) -> list[list[int]]:
        """Return the rows of each read of a thread."""
        return [rows for name, rows in self.calls if name == thread]


def with_images(images: Any) -> Population:
    return replace(POPULATION, images=images)


def make_plan(round: int) -> RoundPlan:
    return plan_round(FEDAVG, POPULATION, 0, round)


def rows_of(plan: RoundPlan) -> list[int]:
    """Return the image rows of a round, each once, in the order in which they are needed."""
    examples = [e for c in plan.clients for e in c.example_indices_SB.ravel() if e >= 0]
    return list(dict.fromkeys(int(POPULATION.image_indices[e]) for e in examples))


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize(
    "name",
    ["fedavg", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedvc", "scaffold", "mimelite", "centralized"))],
)
@pytest.mark.parametrize("kind", ["raw", pytest.param("memmap", marks=pytest.mark.slow)])
def test_a_run_is_the_same_bit_for_bit_with_and_without_prefetching(tmp_path: Path, name: str, kind: str) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    images: Any = (
        MemoryMappedImages(tmp_path / "images.npy")
        if kind == "raw"
        else np.load(tmp_path / "images.npy", mmap_mode="r")
    )
    keywords: dict[str, dict[str, Any]] = {"fedvc": {"virtual_client_size": 5, "cohort_size": 3}, "centralized": {}}
    algorithm = NAMED_ALGORITHMS[name](batch_size=4, **keywords.get(name, {"cohort_size": 3}))
    preprocess = Preprocess(crop=3, flip_horizontal=True)
    in_memory, without, prefetched = (
        train(
            population,
            "linear",
            algorithm,
            test=POPULATION,
            preprocess=preprocess,
            rounds=4,
            prefetch_mib=prefetch_mib,
        )
        for population, prefetch_mib in ((POPULATION, 0), (with_images(images), 0), (with_images(images), 1))
    )
    for run in (without, prefetched):
        assert torch.equal(FlatModel(run.model).read(), FlatModel(in_memory.model).read())
        assert [e["train_loss"] for e in run.events[1:]] == [e["train_loss"] for e in in_memory.events[1:]]


def test_after_the_first_round_training_reads_nothing_from_disk() -> None:
    images = RecordingImages()
    train(with_images(images), "linear", FEDAVG, rounds=4, engine="reference")
    assert {row for rows in images.reads("MainThread") for row in rows} == set(rows_of(make_plan(0)))
    assert images.reads("prefetch") == [sorted(rows_of(make_plan(round))) for round in (1, 2, 3)]


def test_a_round_is_planned_once() -> None:
    in_main_thread = []

    @dataclass(frozen=True)
    class CountingSampler(UniformSampler):
        def sample(self, population: Population, rng: np.random.Generator) -> Ints:
            in_main_thread.append(threading.current_thread() is threading.main_thread())
            return super().sample(population, rng)

    train(with_images(RecordingImages()), "linear", replace(FEDAVG, sampler=CountingSampler(3)), rounds=4)
    assert in_main_thread == [True, False, False, False]


def test_the_next_round_is_planned_once_however_often_the_device_is_busy() -> None:
    planned, prefetched = list[int](), list[int]()

    def plan(round: int) -> RoundPlan:
        planned.append(round)
        return RoundPlan(0, round, ())

    source = PlanPrefetcher(plan, 3, lambda plan: prefetched.append(plan.round))
    for round in range(3):
        assert source.plan(round).round == round
        source.prepare()
        source.prepare()
    assert (planned, prefetched) == ([0, 1, 2], [1, 2])


def test_at_most_the_limit_is_prefetched_starting_with_what_is_needed_first() -> None:
    images = RecordingImages()
    with ImagePrefetcher(with_images(images), make_plan, 2, 5 * IMAGE_BYTES + 1) as prefetcher:
        prefetcher.plan(0)
        rows = np.array(rows_of(prefetcher.plan(1)))
        assert images.reads("prefetch") == [sorted(rows[:5].tolist())]
        np.testing.assert_array_equal(prefetcher[rows], PIXELS[rows])
        np.testing.assert_array_equal(prefetcher[rows[::-1]], PIXELS[rows[::-1]])
    assert images.reads("MainThread") == [rows[5:].tolist(), rows[:4:-1].tolist()]


def test_a_limit_below_one_image_prefetches_nothing() -> None:
    images = RecordingImages()
    with ImagePrefetcher(with_images(images), make_plan, 2, IMAGE_BYTES - 1) as prefetcher:
        prefetcher.plan(0)
        rows = np.array(rows_of(prefetcher.plan(1)))
        np.testing.assert_array_equal(prefetcher[rows], PIXELS[rows])
    assert images.reads("prefetch") == []


def test_a_round_other_than_the_next_is_planned_when_it_is_requested() -> None:
    with ImagePrefetcher(with_images(RecordingImages()), make_plan, 9, 2**20) as prefetcher:
        prefetcher.plan(0)
        assert rows_of(prefetcher.plan(5)) == rows_of(make_plan(5))


def fail_in_another_thread(rows: Ints) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise OSError("the disk is gone")


def test_an_error_of_the_prefetching_thread_ends_the_run() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        train(with_images(RecordingImages(on_read=fail_in_another_thread)), "linear", FEDAVG, rounds=3)
    assert prefetch_threads() == []


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_prefetching_thread_stops_between_chunks_when_a_run_fails(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail_in_main_thread(rows: Ints) -> None:
        if threading.current_thread() is threading.main_thread():
            raise error
        time.sleep(0.05)

    monkeypatch.setattr(engine_images, "READ_CHUNK_BYTES", 1)  # one image per chunk
    images = RecordingImages(on_read=fail_in_main_thread)
    with pytest.raises(error):
        train(with_images(images), "linear", fedavg(cohort_size=9, batch_size=4), rounds=3)
    assert prefetch_threads() == []
    assert len(images.reads("prefetch")) < 30  # of 60


def test_no_thread_is_left_after_a_run() -> None:
    train(with_images(RecordingImages()), "linear", FEDAVG, rounds=3)
    assert prefetch_threads() == []


def test_images_in_memory_are_not_prefetched(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    assert not reads_from_disk(PIXELS)
    assert not reads_from_disk(DeviceImages(torch.from_numpy(PIXELS)))
    assert reads_from_disk(np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert reads_from_disk(MemoryMappedImages(tmp_path / "images.npy"))


def test_a_prefetcher_is_indexed_as_its_images() -> None:
    prefetcher = ImagePrefetcher(with_images(RecordingImages()), make_plan, 1, 0)
    assert len(prefetcher) == 60
    assert prefetcher.shape == (60, 4, 4, 3)
    assert prefetcher.dtype == np.uint8
