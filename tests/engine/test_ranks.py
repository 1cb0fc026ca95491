"""The ranks engine: what the reference computes, whatever happens to its processes, and none left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithm import Aggregate, Algorithm, ClientStore, Diverged, Engine, State, Work
from manyeyes.algorithms import NAMED, fedavg, scaffold
from manyeyes.data import raw
from manyeyes.data.augment import Augment
from manyeyes.data.encoded import Encoded, encode
from manyeyes.data.hdf5 import Images
from manyeyes.data.raw import Raw
from manyeyes.engine.prefetch import Prefetch
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.engine.workers import available
from manyeyes.models import build
from manyeyes.models.flat import FlatModel
from manyeyes.parts import SGD, Everyone, Layers, Pooled
from manyeyes.population import Population, SingleLabels
from manyeyes.round import plan_round, play_round, start

pytestmark = pytest.mark.skipif(available() is not None, reason=f"no workers: {available()}")

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8, 3), np.uint8)
PEOPLE = Population.of(IMAGES, SingleLabels(RNG.integers(0, 3, 60), tuple("abc")), RNG.integers(0, 7, 60))
SHAKE = Augment(pad=1, flip_horizontal=True)
FEDAVG = replace(fedavg(batch=4, lr=0.1), cohort=Everyone())
Until = Callable[[Callable[[], bool]], None]
Spawn = Callable[..., "subprocess.Popen[str]"]


def lenet() -> nn.Module:
    return build("lenet", 3, size=8, width=4, seed=0)


def linear() -> nn.Module:
    return build("linear", 3, size=8, seed=0)


def ranks(
    module: nn.Module,
    workers: int = 2,
    people: Population = PEOPLE,
    augment: Augment = SHAKE,
    precision: str = "float32",
) -> Ranks:
    return Ranks(FlatModel(module), people, augment, CPU, workers, precision)


def game(
    algorithm: Algorithm,
    engine: Engine,
    state: State,
    rounds: int,
    people: Population = PEOPLE,
    clients: ClientStore | None = None,
) -> tuple[State, ClientStore]:
    clients = {} if clients is None else clients
    for _ in range(rounds):
        state, _ = play_round(algorithm, state, people, engine, clients, seed=0)
    return state, clients


def begin(algorithm: Algorithm, module: nn.Module) -> State:
    model = FlatModel(module)
    return start(algorithm, model.read(), model.trained)


def one_round(
    engine: Engine, module: nn.Module, algorithm: Algorithm = FEDAVG, people: Population = PEOPLE
) -> Aggregate:
    plan = plan_round(algorithm, people, 0, 0, engine.dice)
    state = begin(algorithm, module)
    work = Work(algorithm.local, algorithm.local.rate(0), algorithm.correct, state.correction, None)
    return engine.train(state.weights, plan, work, {})


def assert_alike(module: nn.Module, found: Tensor, expected: Tensor) -> None:
    """Each parameter's update within 1e-5 of its length."""
    model = FlatModel(module)
    first, lengths = model.read(), [int(np.prod(shape)) for shape in model.shapes.values()]
    updates = ((first - weights).split(lengths) for weights in (found, expected))
    for name, one, other in zip(model.shapes, *updates, strict=True):
        assert torch.linalg.vector_norm(one - other) <= 1e-5 * torch.linalg.vector_norm(other), name


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", NAMED)
def test_two_rounds_equal_those_of_the_reference(name: str, workers: int) -> None:
    algorithm = NAMED[name](batch=4, lr=0.05, **({"examples": 8} if name == "fedvc" else {}))
    pooled = isinstance(algorithm.cohort, Pooled)
    people = PEOPLE.pooled() if pooled else PEOPLE
    algorithm = algorithm if pooled else replace(algorithm, cohort=Everyone())
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    assert_same_game(algorithm, normed if name == "fedbn" else lenet(), people, workers)


def test_personal_layers_stay_with_their_clients() -> None:
    assert_same_game(replace(FEDAVG, personal=Layers(("fc3.*",))), lenet())


def test_state_of_the_optimiser_stays_with_its_client() -> None:
    assert_same_game(replace(FEDAVG, local=SGD(0.05, momentum=0.9, keep=True)), lenet())


def test_live_batch_norm_is_averaged() -> None:
    torch.manual_seed(0)
    assert_same_game(FEDAVG, nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)))


@pytest.mark.parametrize("name", ["fedavg", "mimelite"])
def test_bf16_is_that_of_the_reference(name: str) -> None:
    normed = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    assert_same_game(replace(NAMED[name](batch=4, lr=0.05), cohort=Everyone()), normed, precision="bf16")


def test_dropout_is_that_of_the_client() -> None:
    torch.manual_seed(0)
    assert_same_game(FEDAVG, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)))


def assert_same_game(
    algorithm: Algorithm,
    module: nn.Module,
    people: Population = PEOPLE,
    workers: int = 2,
    rounds: int = 2,
    precision: str = "float32",
) -> None:
    first, reference = begin(algorithm, module), Reference(FlatModel(module), people, SHAKE, CPU, precision)
    expected, kept = game(algorithm, reference, first, rounds, people)
    with ranks(module, workers, people, precision=precision) as engine:
        found, keeps = game(algorithm, engine, first, rounds, people)
    assert_alike(module, found.weights, expected.weights)
    assert list(keeps) == list(kept)
    for key, own in kept.items():
        for name, tensor in own.items():
            torch.testing.assert_close(keeps[key][name], tensor, rtol=1e-4, atol=1e-5)


def test_statistics_come_in_the_order_of_the_plan() -> None:
    with ranks(lenet(), 3) as engine:
        found = one_round(engine, lenet())
    expected = one_round(Reference(FlatModel(lenet()), PEOPLE, SHAKE, CPU), lenet())
    np.testing.assert_allclose(found.loss_K, expected.loss_K, rtol=1e-6)
    np.testing.assert_allclose(found.norm_K, expected.norm_K, rtol=1e-6)
    assert found.kept_K.tolist() == expected.kept_K.tolist() == [True] * 7
    assert found.reports_P is None


def test_a_game_repeats_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch=4), cohort=Everyone())
    ends = []
    for _ in range(2):
        with ranks(lenet()) as engine:
            ends.append(game(algorithm, engine, begin(algorithm, lenet()), 3)[0].weights)
    assert torch.equal(*ends)


def test_other_processes_go_on_where_some_have_stopped_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch=4), cohort=Everyone())
    with ranks(lenet()) as engine:
        straight, _ = game(algorithm, engine, begin(algorithm, lenet()), 4)
    with ranks(lenet()) as engine:
        state, clients = game(algorithm, engine, begin(algorithm, lenet()), 2)
    with ranks(lenet()) as engine:
        resumed, _ = game(algorithm, engine, state, 2, clients=clients)
    assert torch.equal(straight.weights, resumed.weights)


def test_no_more_processes_are_started_than_there_are_clients() -> None:
    assert_same_game(replace(fedavg(batch=4), cohort=Everyone()), linear(), workers=20)
    with ranks(linear(), 20) as engine:
        one_round(engine, linear())
        assert len(pids(engine)) == 7


def test_a_process_has_the_threads_that_it_needs_after_a_parent_that_had_more() -> None:
    torch.set_num_threads(2)
    try:
        torch.ones(2**20, requires_grad=True).square().sum().backward()
        with ranks(lenet()) as engine:
            one_round(engine, lenet())
            counts = [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids(engine)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert counts == [2, 2]  # that which works, and that which looks after the parent


class Flawed(nn.Module):
    """Gives a number that is none for images of user 3, whom it knows by a white corner."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, images: Tensor) -> Tensor:
        white = (images[:, :, 0, 0] > 1.99).all(1)
        return self.inner(images) + torch.where(white, torch.nan, 0.0)[:, None]


def test_a_client_that_is_not_finite_is_left_out_as_in_the_reference() -> None:
    pixels = IMAGES.copy()
    pixels[:, 0, 0] = 7
    pixels[PEOPLE.rows[PEOPLE.examples(3)], 0, 0] = 255
    people, algorithm = replace(PEOPLE, images=pixels), replace(scaffold(batch=4), cohort=Everyone())
    expected = one_round(Reference(FlatModel(Flawed()), people, Augment(), CPU), Flawed(), algorithm, people)
    with ranks(Flawed(), people=people, augment=Augment()) as engine:
        found = one_round(engine, Flawed(), algorithm, people)
    assert found.kept_K.tolist() == expected.kept_K.tolist() == [True] * 3 + [False] + [True] * 3
    assert list(found.keeps) == list(expected.keeps) == [0, 1, 2, 4, 5, 6]
    assert found.reports_P is not None
    torch.testing.assert_close(found.update_W, expected.update_W, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.reports_P, expected.reports_P, rtol=1e-5, atol=1e-6)


# --- what may happen to a process


def pids(engine: Ranks) -> list[int]:
    return [worker.pid for worker in engine._workers.values()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Fated(nn.Module):
    """A model in which, in a worker, something happens once for each file of a folder."""

    def __init__(self, folder: Path, fate: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.folder, self.fate, self.home = linear(), folder, fate, os.getpid()

    def forward(self, images: Tensor) -> Tensor:
        if os.getpid() != self.home:
            for file in self.folder.iterdir():
                with suppress(FileNotFoundError):  # the other worker was faster
                    file.unlink()
                    self.fate()
        return self.inner(images)


def fated(folder: Path, fate: Callable[[], None], times: int = 1) -> Fated:
    for number in range(times):
        (folder / str(number)).touch()
    return Fated(folder, fate)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ranks(linear()) as engine:
        expected = one_round(engine, linear())
    with ranks(fated(tmp_path, die)) as engine:
        found = one_round(engine, linear())
    assert torch.equal(found.update_W, expected.update_W)
    assert found.loss_K.tolist() == expected.loss_K.tolist()
    err = capsys.readouterr().err
    assert err in [f"round 1: worker {number} died (SIGKILL) and is replaced\n" for number in (1, 2)]


def test_a_worker_that_died_between_rounds_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    with ranks(linear()) as engine:
        expected = one_round(engine, linear())
        os.kill(pids(engine)[1], signal.SIGKILL)
        found = one_round(engine, linear())
    assert torch.equal(found.update_W, expected.update_W)
    assert capsys.readouterr().err == "round 1: worker 2 died (SIGKILL) and is replaced\n"


def test_workers_that_die_again_and_again_are_given_up(tmp_path: Path) -> None:
    engine = ranks(fated(tmp_path, die, times=50))
    with pytest.raises(RuntimeError, match=r"died 3 times in round 1 \(SIGKILL\).*use fewer workers"):
        one_round(engine, linear())
    assert pids(engine) == []


class Odd(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"odd {one} {other}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Diverged("far away"), Diverged, "far away"),
        (PermissionError(13, "Not yours", "a.jpg"), PermissionError, "[Errno 13] Not yours: 'a.jpg'"),
        (Odd(1, 2), RuntimeError, "Odd: odd 1 2"),
        (SystemExit(3), SystemExit, "3"),
    ],
)
def test_an_error_in_a_worker_is_one_here(
    tmp_path: Path, error: BaseException, kind: type[BaseException], text: str
) -> None:
    def fate() -> None:
        raise error

    engine = ranks(fated(tmp_path, fate))
    before = threading.active_count()
    with pytest.raises(kind) as caught:
        one_round(engine, linear())
    assert type(caught.value) is kind
    assert str(caught.value) == text
    assert "in fate" in caught.value.__notes__[0]  # where it happened
    assert pids(engine) == []
    assert threading.active_count() == before
    with engine:
        assert one_round(engine, linear()).kept_K.all()  # and the engine can be used again


def test_no_process_and_no_zombie_is_left_by_close() -> None:
    with ranks(linear(), 3) as engine:
        one_round(engine, linear())
        found = pids(engine)
        assert len(found) == 3 and all(map(alive, found))
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    engine.close()


@dataclass(frozen=True)
class Mine(SGD):
    """A part that somebody else has written."""


def test_a_part_of_ones_own_is_sent_where_it_can_be() -> None:
    assert_same_game(replace(FEDAVG, local=Mine(0.1)), linear())

    class Hidden(SGD):
        pass

    with ranks(linear()) as engine, pytest.raises(ValueError, match=r"Hidden.*use engine=reference"):
        one_round(engine, linear(), replace(FEDAVG, local=Hidden(0.1)))


def test_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="device is cuda"):
        Ranks(FlatModel(linear()), PEOPLE, SHAKE, torch.device("cuda"))
    with pytest.raises(ValueError, match="workers is 0"):
        ranks(linear(), 0)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="cannot fork a process: use engine=reference"):
        ranks(linear())


# --- real parents

SCRIPT = """
import atexit, json, os, sys, time
import numpy as np
import torch
from torch import nn
from manyeyes.algorithm import Work
from manyeyes.round import plan_round
from manyeyes.algorithms import fedavg
from manyeyes.data.augment import Augment
from manyeyes.engine import workers
from manyeyes.engine.ranks import Ranks
from manyeyes.models.flat import FlatModel
from manyeyes.population import Population, SingleLabels

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 2)

    def forward(self, images):
        print("a word of a worker")
        os.write(1, b"another")
        with open("working", "a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(float(sys.argv[1]))
        return self.fc(images.flatten(1))

workers.GLANCE = float(sys.argv[2])
atexit.register(print, "the end")
people = Population.of(np.zeros((8, 4, 4, 3), np.uint8), SingleLabels(np.zeros(8, int), ("a", "b")), np.arange(8) // 2)
algorithm, model = fedavg(cohort=4, batch=2), FlatModel(Model())
engine = Ranks(model, people, Augment(), torch.device("cpu"), 2)
try:
    plan, work = plan_round(algorithm, people, 0, 0), Work(algorithm.local, 0.1, None, None, None)
    engine.train(model.read(), plan, work, {})
    print("trained", flush=True)
    time.sleep(float(sys.argv[3]))
finally:
    print("finally")
"""


def workers_of(folder: Path) -> set[int]:
    file = folder / "working"
    return {int(word) for word in file.read_text().split()} if file.exists() else set()


@pytest.fixture
def run(spawn: Spawn, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The script in a group of processes of its own, as a shell starts it; none of the group outlives the test."""
    started = []

    def begin(**seconds: float) -> subprocess.Popen[str]:
        words = [
            str({"step": 0.0, "glance": 0.05, "rest": 0.0, **seconds}[name]) for name in ("step", "glance", "rest")
        ]
        started.append(spawn("-c", SCRIPT, *words, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_workers_say_nothing_and_do_nothing_that_the_parent_has_yet_to_do(
    run: Any, tmp_path: Path, until: Until
) -> None:
    """It forgets to close them, too."""
    out, err = run().communicate(timeout=60)
    assert (out, err) == ("trained\nfinally\nthe end\n", "")
    until(lambda: not any(map(alive, workers_of(tmp_path))))


def test_workers_end_with_a_parent_that_is_killed_while_they_rest(run: Any, tmp_path: Path, until: Until) -> None:
    """They read the end of the pipe: none but the parent held its other end."""
    process = run(rest=60, glance=1000)
    assert process.stdout.readline() == "trained\n"
    found = workers_of(tmp_path)
    assert len(found) == 2 and all(map(alive, found))
    process.kill()
    began = time.monotonic()
    until(lambda: not any(map(alive, found)))
    assert time.monotonic() - began < 10


def test_workers_end_with_a_parent_that_is_killed_while_they_work(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=60)
    until(lambda: len(workers_of(tmp_path)) == 2)
    process.kill()
    began = time.monotonic()
    until(lambda: not any(map(alive, workers_of(tmp_path))))
    assert time.monotonic() - began < 10


def test_ctrl_c_leaves_no_process(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=60, glance=1000)
    until(lambda: len(workers_of(tmp_path)) == 2)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    out, err = process.communicate(timeout=30)
    assert out == "finally\nthe end\n"
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    assert not any(map(alive, workers_of(tmp_path)))


# --- images that are read ahead


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


def play_ahead(images: Any, most: int, rounds: int, on_round: Callable[[Ranks], None] = lambda engine: None) -> Tensor:
    """A game with images read ahead; the weights at its end."""
    held = replace(PEOPLE, images=images)
    algorithm = fedavg(cohort=3, batch=4)
    ahead = Prefetch(held, lambda round: plan_round(algorithm, held, 0, round), rounds, most)
    state = begin(algorithm, linear())
    with ranks(linear(), people=replace(held, images=ahead), augment=Augment()) as engine, ahead:
        for round in range(rounds):
            plan = ahead.plan(round)
            state, _ = play_round(algorithm, state, PEOPLE, engine, {}, 0, plan)
            on_round(engine)
    return state.weights


def rows_of(round: int) -> list[int]:
    plan = plan_round(fedavg(cohort=3, batch=4), PEOPLE, 0, round)
    return sorted(int(PEOPLE.rows[e]) for c in plan.clients for e in c.rows_SB.ravel() if e >= 0)


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

    def kill(engine: Ranks) -> None:
        os.kill(pids(engine)[0], signal.SIGKILL)

    store = Store(tmp_path / "log")
    found = play_ahead(store, 2**20, 5, kill)
    assert sorted(row for rows in store.asked("MainThread") for row in rows) == rows_of(0)
    assert torch.equal(found, play_ahead(Store(tmp_path / "other"), 0, 5))


def stored(kind: str, folder: Path) -> Any:
    if kind == "raw":
        np.save(folder / "images.npy", IMAGES)
        return Raw(folder / "images.npy")
    if kind == "encoded":
        parts = [encode(image) for image in IMAGES]
        (folder / "images").write_bytes(b"".join(parts))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, parts)]))
        return Encoded(folder / "images", folder / "offsets.npy", 8, 8)
    with h5py.File(folder / "images.h5", "w") as file:
        file.create_dataset("all/images", data=IMAGES, chunks=(1, 8, 8, 3), compression="gzip")
    return Images(folder / "images.h5", ("all",), np.array([0, 60]), np.array([-1]), (8, 8, 3))


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
