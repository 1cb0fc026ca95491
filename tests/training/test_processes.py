"""Trainings side by side: what they say, and that none outlives the command."""

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
DEAF = "import signal; signal.signal(signal.SIGTERM, lambda *_: pathlib.Path('asked').touch()); " + ENDLESS


def work(word: str, train: Train) -> str:
    return train([word])


def python(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "-c", program))


def test_what_went_wrong_with_each_is_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    python(monkeypatch, "import sys; word = sys.argv[1]; sys.exit({'well': 0, 'mute': 3}.get(word, 'a\\nmanyeyes: b'))")
    works = [partial(work, word) for word in ("well", "mute", "loud")]
    assert run_parallel(works, 2) == ["", "it ended with code 3", "b"]


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_no_training_outlives_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., None],
    number: signal.Signals,
    raised: type[BaseException],
) -> None:
    monkeypatch.chdir(tmp_path)
    python(monkeypatch, ENDLESS)
    before = signal.getsignal(signal.SIGTERM)

    def ask() -> None:
        until(lambda: len(list(tmp_path.glob("pid*"))) == 2)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask).start()
    with pytest.raises(raised):
        run_parallel([partial(work, str(n)) for n in range(4)], 2)
    pids = [int(path.name.removeprefix("pid")) for path in tmp_path.glob("pid*")]
    assert len(pids) == 2  # of four, two at a time, and the others were not begun
    assert not any(_lives(pid) for pid in pids)
    assert signal.getsignal(signal.SIGTERM) is before


def test_asked_twice_it_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    python(monkeypatch, DEAF)

    def ask() -> None:
        until(lambda: any(tmp_path.glob("pid*")))
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: (tmp_path / "asked").exists())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ask).start()
    with pytest.raises(KeyboardInterrupt):
        run_parallel([partial(work, "one")], 1)
    (path,) = tmp_path.glob("pid*")
    until(lambda: not _lives(int(path.name.removeprefix("pid"))))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
