"""Progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from logging.handlers import BufferingHandler

import pytest

from manyeyes.algorithms import ditto, fedavg
from manyeyes.components import WeightUniformly
from manyeyes.core.population import Population
from manyeyes.io.steps import announce, shows_progress
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.progress import PlainLines, counter, headline, make_display, show_progress
from tests.training.small_runs import run


def test_progress_is_shown_on_a_terminal_and_elsewhere_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert make_display("title") is None
    assert make_display("title", show=False) is None
    assert isinstance(make_display("title", show=True), PlainLines)


def test_plain_lines_show_steps_loss_accuracy_and_speed(
    population: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    run(population, fedavg(cohort_size=3, batch_size=2), progress=True, title="demo")
    lines = [re.sub(r"^\[\d\d:\d\d:\d\d\] demo: ", "", line) for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == ["training 4 rounds", "evaluating on 6 images"]
    for line, done in ((lines[2], 1), (lines[-1], 4)):
        assert re.match(rf"{done} of 4  loss \d+\.\d{{3}}  accuracy [01]\.\d{{3}}  [\d,]+ images/s", line), line


def test_plain_lines_are_printed_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    lines = PlainLines("run", clock=lambda: now)
    for done in range(1, 41):  # a round takes two seconds, and is followed by an evaluation
        lines.update(done, 40, "loss 1")
        lines.step("evaluating")
        now += 2
    lines.update(40, 40, "loss 1")
    printed = [line.partition("run: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert printed[:4] == ["1 of 40  loss 1", "evaluating", "6 of 40  loss 1  68 s left", "11 of 40  loss 1  58 s left"]
    assert printed[-1] == "40 of 40  loss 1"
    assert len(printed) == 10


def test_steps_are_announced_before_they_begin(population: Population, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = replace(ditto(cohort_size=3), client_weighting=WeightUniformly(), privacy=CentralDP(epsilon=8))
    run(population, algorithm, progress=True, title="demo", rounds=1)
    steps = [line.partition("demo: ")[2] for line in capsys.readouterr().err.splitlines()]
    noise = "computing the noise of the privacy budget (seconds; with privacy.accountant=pld up to minutes)"
    advice = "A round is one small step for most clients: half of them have 6 images or fewer, and a batch has 64."
    assert steps[0] == noise
    assert steps[1].startswith(advice)
    assert steps[2].startswith("No evaluated user takes part in training")
    assert steps[3].startswith("The noise is ")
    assert steps[4:6] == ["training 1 rounds", "evaluating 1 personal models and the shared model"]


def test_only_the_first_process_of_a_run_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with show_progress("run", show=True) as display:
        announce("evaluating")
    assert (display, capsys.readouterr().err) == (None, "")


def test_the_environment_silences_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shows_progress()  # as in all tests
    monkeypatch.delenv("MANYEYES_PROGRESS")
    assert shows_progress()


def test_nothing_is_printed_without_a_terminal(population: Population, capfd: pytest.CaptureFixture[str]) -> None:
    run(population, fedavg(cohort_size=3), progress=None)
    with counter("title", "images") as update:
        assert update is None
    announce("evaluating")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_command_without_a_terminal_says_what_it_does_from_the_start(
    spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    env = os.environ | {"MANYEYES_PROGRESS": "", "OMP_NUM_THREADS": "1"}
    out, errors = spawn("-m", "manyeyes", "run", *tiny, "rounds=2", env=env).communicate(timeout=120)
    first, second, *lines = errors.splitlines()
    assert (first, second[11:]) == ("manyeyes run: loading PyTorch", "fedavg: loading data=synthetic")
    assert " fedavg: 2 of 2  loss " in lines[-1]
    assert out.count("\n") == 1


def test_the_headline_is_the_first_metric_of_an_event() -> None:
    assert headline({"round": 0, "loss": 1.0, "accuracy": 0.25}) == "accuracy 0.250"
    assert headline({"round": 1}) == ""


@pytest.mark.slow
def test_a_notebook_shows_a_bar_below_the_cell() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    lines = (
        "import manyeyes as me",
        "population = me.make_synthetic(me.SyntheticImages(users=20, size=32), processes=1)",
        "result = me.train(population, 'linear', me.fedavg(cohort_size=2), rounds=3, title='mine')",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("\n".join(lines))])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs  # which every update replaces
    assert '<div>mine <progress value="3" max="3"></progress> 3/3 loss ' in output.data["text/html"]


@pytest.mark.slow
def test_a_terminal_shows_speed_and_time_left(
    spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    terminal, process_end = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "MANYEYES_PROGRESS": "", "OMP_NUM_THREADS": "1"}
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


def test_a_step_is_no_record_of_the_root_logger() -> None:
    handler = BufferingHandler(2)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        announce("evaluating")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert not handler.buffer
