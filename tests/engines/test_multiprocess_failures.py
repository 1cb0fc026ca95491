"""The multiprocess engine when workers die or fail: results are complete, errors are raised, no process is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from manyeyes.core.state import DivergenceError
from tests.engines.multiprocess_runs import NEEDS_WORKERS, is_alive, linear, make_engine, train_one_round, worker_pids

pytestmark = NEEDS_WORKERS


class FailingModel(nn.Module):
    """A model that calls a function in a worker, once for each file of a folder."""

    def __init__(self, folder: Path, fail: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.folder, self.fail, self.parent_pid = linear(), folder, fail, os.getpid()

    def forward(self, images: Tensor) -> Tensor:
        if os.getpid() != self.parent_pid:
            for file in self.folder.iterdir():
                with suppress(FileNotFoundError):  # the other worker was faster
                    file.unlink()
                    self.fail()
        return self.inner(images)


def make_failing_model(folder: Path, fail: Callable[[], None], times: int = 1) -> FailingModel:
    for number in range(times):
        (folder / str(number)).touch()
    return FailingModel(folder, fail)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_clients_are_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_engine(linear()) as engine:
        expected = train_one_round(engine, linear())
    with make_engine(make_failing_model(tmp_path, die)) as engine:
        actual = train_one_round(engine, linear())
    assert torch.equal(actual.update_W, expected.update_W)
    assert actual.loss_K.tolist() == expected.loss_K.tolist()
    err = capsys.readouterr().err
    assert err in [f"round 1: worker {number} died (SIGKILL) and is replaced\n" for number in (1, 2)]


def test_a_worker_that_died_between_rounds_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    with make_engine(linear()) as engine:
        expected = train_one_round(engine, linear())
        os.kill(worker_pids(engine)[1], signal.SIGKILL)
        actual = train_one_round(engine, linear())
    assert torch.equal(actual.update_W, expected.update_W)
    assert capsys.readouterr().err == "round 1: worker 2 died (SIGKILL) and is replaced\n"


def test_the_third_death_of_a_worker_ends_the_run(tmp_path: Path) -> None:
    engine = make_engine(make_failing_model(tmp_path, die, times=50))
    with pytest.raises(RuntimeError, match=r"died 3 times in round 1 \(SIGKILL\).*set engine.workers"):
        train_one_round(engine, linear())
    assert worker_pids(engine) == []


class UnpicklableError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__(f"bad cell {row} {column}")


@pytest.mark.fast_cases("error2")
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DivergenceError("far away"), DivergenceError, "far away"),
        (PermissionError(13, "Not yours", "a.jpg"), PermissionError, "[Errno 13] Not yours: 'a.jpg'"),
        (UnpicklableError(1, 2), RuntimeError, "UnpicklableError: bad cell 1 2"),
        (SystemExit(3), SystemExit, "3"),
    ],
)
def test_an_error_in_a_worker_is_raised_in_the_parent(
    tmp_path: Path, error: BaseException, kind: type[BaseException], text: str
) -> None:
    def fail() -> None:
        raise error

    engine = make_engine(make_failing_model(tmp_path, fail))
    num_threads = threading.active_count()
    with pytest.raises(kind) as caught:
        train_one_round(engine, linear())
    assert type(caught.value) is kind
    assert str(caught.value) == text
    assert "in fail" in caught.value.__notes__[0]  # where it happened
    assert worker_pids(engine) == []
    assert threading.active_count() == num_threads
    with engine:
        assert train_one_round(engine, linear()).accepted_K.all()  # the engine can be used again


def test_close_leaves_no_process_and_no_zombie() -> None:
    with make_engine(linear(), 3) as engine:
        train_one_round(engine, linear())
        pids = worker_pids(engine)
        assert len(pids) == 3 and all(map(is_alive, pids))
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    engine.close()
