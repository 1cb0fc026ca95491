"""The ranks engine whose processes die or fail: nothing is lost, nothing hidden, and none left behind."""

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
from tests.engines.multiprocess_runs import NEEDS_WORKERS, alive, linear, one_round, pids, ranks

pytestmark = NEEDS_WORKERS


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
        (DivergenceError("far away"), DivergenceError, "far away"),
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
        assert one_round(engine, linear()).accepted_K.all()  # and the engine can be used again


def test_no_process_and_no_zombie_is_left_by_close() -> None:
    with ranks(linear(), 3) as engine:
        one_round(engine, linear())
        found = pids(engine)
        assert len(found) == 3 and all(map(alive, found))
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    engine.close()
