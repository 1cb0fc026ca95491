"""Progress: a line on a terminal, and silence elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from manyeyes.training.progress import Bar, NullProgress, progress_bar


def test_it_is_silent_when_standard_error_is_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress_bar("title", 0, 10), NullProgress)


def test_it_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("title", 0, 10, show=True) as bar:
        assert isinstance(bar, Bar)
        bar.advance(4, 1.25, "accuracy 0.500", 12345.6)
    assert re.search(r"title .*4/10 loss 1.250  accuracy 0.500  12,346 images/s", sys.stderr.getvalue())  # type: ignore[attr-defined]


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("title", 0, 10, show=False) as bar:
        bar.advance(4, 1.25, "", 10)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_speed_and_time_left(
    spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    process = spawn("-m", "manyeyes", "run", *tiny, "rounds=20", stderr=slave, env=env)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    finally:
        os.close(master)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"fedavg .*20/20 loss \d\.\d{3}  accuracy 0\.\d{3}  [\d,]+ images/s \d:\d\d:\d\d", text), text
