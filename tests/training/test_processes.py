"""Runs in processes of their own: their error messages, and that none outlives the command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from manyeyes.training import processes
from manyeyes.training.processes import Train, run_parallel

ENDLESS = "import os, pathlib, time; pathlib.Path(f'pid{os.getpid()}').touch(); time.sleep(120)"
IGNORES_SIGTERM = (
    f"import signal; signal.signal(signal.SIGTERM, lambda *_: pathlib.Path('requested').touch()); {ENDLESS}"
)


def train_with(argument: str, train: Train) -> str:
    return train([argument])


def replace_command(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "-c", program))


def test_the_error_of_a_process_is_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    results = "{'success': 0, 'silent': 3}.get(sys.argv[1], 'a\\nmanyeyes: b')"
    replace_command(monkeypatch, f"import sys; sys.exit({results})")
    tasks = [partial(train_with, argument) for argument in ("success", "silent", "message")]
    assert run_parallel(tasks, 2) == ["", "the process ended with code 3", "b"]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_no_process_outlives_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., None],
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    monkeypatch.chdir(tmp_path)
    replace_command(monkeypatch, ENDLESS)
    before = signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        until(lambda: len(list(tmp_path.glob("pid*"))) == 2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(error):
        run_parallel([partial(train_with, str(n)) for n in range(4)], 2)
    pids = [int(path.name.removeprefix("pid")) for path in tmp_path.glob("pid*")]
    assert len(pids) == 2  # of four, two at a time, and the others were not started
    assert not any(_is_running(pid) for pid in pids)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_interrupt_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    replace_command(monkeypatch, IGNORES_SIGTERM)

    def interrupt_twice() -> None:
        until(lambda: any(tmp_path.glob("pid*")))
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: (tmp_path / "requested").exists())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_twice).start()
    with pytest.raises(KeyboardInterrupt):
        run_parallel([partial(train_with, "one")], 1)
    (path,) = tmp_path.glob("pid*")
    until(lambda: not _is_running(int(path.name.removeprefix("pid"))))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
