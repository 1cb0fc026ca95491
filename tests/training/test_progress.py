"""Progress: a line on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population
from manyeyes.training.progress import ProgressBar, counter, headline, progress_bar
from tests.training.small_runs import run


def test_a_bar_is_shown_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress_bar("title") == []
    assert progress_bar("title", show=False) == []
    (bar,) = progress_bar("title", show=True)
    assert isinstance(bar, ProgressBar)


def test_a_bar_shows_rounds_loss_accuracy_and_speed(population: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", "120")
    run(population, fedavg(cohort_size=3), progress=True, title="demo")
    assert re.search(r"demo .*4/4 loss \d\.\d{3}  accuracy 0\.\d{3}  [\d,]+ images/s", stderr.getvalue())


def test_nothing_is_printed_without_a_terminal(population: Population, capfd: pytest.CaptureFixture[str]) -> None:
    run(population, fedavg(cohort_size=3), progress=None)
    with counter("title", "images") as update:
        assert update is None
    assert capfd.readouterr() == ("", "")


def test_the_headline_is_the_first_metric_of_an_event() -> None:
    assert headline({"round": 0, "loss": 1.0, "accuracy": 0.25}) == "accuracy 0.250"
    assert headline({"round": 1}) == ""


@pytest.mark.slow
def test_a_terminal_shows_speed_and_time_left(
    spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    terminal, process_end = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    process = spawn("-m", "manyeyes", "run", *tiny, "rounds=20", stderr=process_end, env=env)
    os.close(process_end)
    output = b""
    try:
        while data := os.read(terminal, 65536):
            output += data
    except OSError:  # how Linux reports that the other end of a terminal is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert re.search(r"fedavg .*20/20 loss \d\.\d{3}  accuracy 0\.\d{3}  [\d,]+ images/s \d:\d\d:\d\d", text), text
