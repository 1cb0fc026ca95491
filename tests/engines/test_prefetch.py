"""Reading ahead: the same numbers, in time, within bounds, and nothing left behind."""

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
from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.store.images import MemoryMappedImages
from manyeyes.engines import prefetch
from manyeyes.engines.images import DeviceImages, ImagePrefetcher, PlanPrefetcher, reads_from_disk
from manyeyes.training.train import train

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 3), dtype=np.uint8)
ONE = PIXELS[0].nbytes
POPULATION = Population.from_arrays(
    PIXELS, SingleLabels(np.arange(60) % 3, tuple("abc")), np.random.default_rng(1).integers(0, 9, 60)
)
FEDAVG = fedavg(cohort_size=3, batch_size=4)


@dataclass
class Store:
    """Images that are read when they are asked for; it keeps who asked for which."""

    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    on_read: Callable[[np.ndarray], None] = lambda rows: None
    shape = PIXELS.shape
    dtype = PIXELS.dtype

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append((threading.current_thread().name.split("_")[0], rows.tolist()))
        self.on_read(rows)
        return PIXELS[rows]

    def of(self, thread: str) -> list[list[int]]:
        return [rows for name, rows in self.asked if name == thread]


def on(images: Any) -> Population:
    return replace(POPULATION, images=images)


def planned(round: int) -> RoundPlan:
    return plan_round(FEDAVG, POPULATION, 0, round)


def rows_of(plan: RoundPlan) -> list[int]:
    """The images of a round, each once, as they come."""
    return list(
        dict.fromkeys(
            int(POPULATION.image_indices[e]) for c in plan.clients for e in c.example_indices_SB.ravel() if e >= 0
        )
    )


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("name", ["fedavg", "fedvc", "scaffold", "mimelite", "centralized"])
@pytest.mark.parametrize("kind", ["raw", "memmap"])
def test_a_run_is_the_same_bit_for_bit_with_and_without(tmp_path: Path, name: str, kind: str) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    images: Any = (
        MemoryMappedImages(tmp_path / "images.npy")
        if kind == "raw"
        else np.load(tmp_path / "images.npy", mmap_mode="r")
    )
    options: dict[str, Any] = {"fedvc": {"virtual_client_size": 5, "cohort_size": 3}, "centralized": {}}.get(
        name, {"cohort_size": 3}
    )
    how: dict[str, Any] = {"augment": Preprocess(crop=3, flip_horizontal=True), "rounds": 4, "test": POPULATION}
    runs = [
        train(population, "linear", NAMED_ALGORITHMS[name](batch_size=4, **options), prefetch_mib=some, **how)
        for population, some in ((POPULATION, 0), (on(images), 0), (on(images), 1))
    ]
    for run in runs[1:]:
        assert torch.equal(run.model.fc.weight, runs[0].model.fc.weight)
        assert [event["train_loss"] for event in run.events[1:]] == [e["train_loss"] for e in runs[0].events[1:]]


def test_after_the_first_round_training_waits_for_no_store() -> None:
    store = Store()
    train(on(store), "linear", FEDAVG, rounds=4, engine="reference")
    assert {row for rows in store.of("MainThread") for row in rows} == set(rows_of(planned(0)))
    assert store.of("prefetch") == [sorted(rows_of(planned(round))) for round in (1, 2, 3)]


def test_a_round_is_planned_once() -> None:
    asked = []

    @dataclass(frozen=True)
    class Counting(UniformSampler):
        def select(self, population: Population, rng: np.random.Generator) -> Any:
            asked.append(threading.current_thread() is threading.main_thread())
            return super().sample(population, rng)

    train(on(Store()), "linear", replace(FEDAVG, sampler=Counting(3)), rounds=4)
    assert asked == [True, False, False, False]


def test_a_round_is_planned_ahead_once_however_often_there_is_time() -> None:
    planned, packed = list[int](), list[int]()

    def plan(round: int) -> RoundPlan:
        planned.append(round)
        return RoundPlan(0, round, ())

    ahead = PlanPrefetcher(plan, 3, lambda plan: packed.append(plan.round))
    for round in range(3):
        assert ahead.plan(round).round == round
        ahead.prepare()
        ahead.prepare()
    assert (planned, packed) == ([0, 1, 2], [1, 2])


def test_no_more_than_the_bound_is_read_ahead_first_what_is_first_asked_for() -> None:
    store = Store()
    with ImagePrefetcher(on(store), planned, 2, 5 * ONE + 1) as ahead:
        ahead.plan(0)
        rows = np.array(rows_of(ahead.plan(1)))
        assert store.of("prefetch") == [sorted(rows[:5].tolist())]
        np.testing.assert_array_equal(ahead[rows], PIXELS[rows])
        np.testing.assert_array_equal(ahead[rows[::-1]], PIXELS[rows[::-1]])
    assert store.of("MainThread") == [rows[5:].tolist(), rows[:4:-1].tolist()]


def test_a_bound_below_one_image_reads_nothing_ahead() -> None:
    store = Store()
    with ImagePrefetcher(on(store), planned, 2, ONE - 1) as ahead:
        ahead.plan(0)
        rows = np.array(rows_of(ahead.plan(1)))
        np.testing.assert_array_equal(ahead[rows], PIXELS[rows])
    assert store.of("prefetch") == []


def test_a_round_other_than_the_next_is_planned_anew() -> None:
    with ImagePrefetcher(on(Store()), planned, 9, 2**20) as ahead:
        ahead.plan(0)
        assert rows_of(ahead.plan(5)) == rows_of(planned(5))


def fails_ahead(rows: np.ndarray) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise OSError("the disk is gone")


def test_an_error_of_the_thread_is_one_of_the_run() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        train(on(Store(on_read=fails_ahead)), "linear", FEDAVG, rounds=3)
    assert threads() == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_thread_outlives_a_run_that_ends_early(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """One image a chunk and 0.2 s an image: a thread that did not stop between chunks would read for much longer."""

    def slow(rows: np.ndarray) -> None:
        if threading.current_thread() is threading.main_thread():
            raise error
        time.sleep(0.2)

    monkeypatch.setattr(prefetch, "CHUNK", 1)
    store = Store(on_read=slow)
    with pytest.raises(error):
        train(on(store), "linear", fedavg(cohort_size=9, batch_size=4), rounds=3)
    assert threads() == []
    assert len(store.of("prefetch")) < 10


def test_no_thread_outlives_a_run() -> None:
    train(on(Store()), "linear", FEDAVG, rounds=3)
    assert threads() == []


def test_images_in_memory_need_no_reading(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", PIXELS)
    assert not reads_from_disk(PIXELS)
    assert not reads_from_disk(DeviceImages(torch.from_numpy(PIXELS)))
    assert reads_from_disk(np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert reads_from_disk(MemoryMappedImages(tmp_path / "images.npy"))


def test_what_is_read_ahead_looks_like_the_images() -> None:
    ahead = ImagePrefetcher(on(Store()), planned, 1, 0)
    assert (len(ahead), ahead.shape, ahead.dtype) == (60, (60, 4, 4, 3), np.uint8)
