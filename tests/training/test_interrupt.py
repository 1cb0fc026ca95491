"""Ctrl-C: the run is saved, and the message says how to continue it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.training.loop import deferred_interrupts

Spawn = Callable[..., "subprocess.Popen[str]"]
FIRST_MESSAGE = "\nFinishing this round, then saving; press Ctrl-C again to stop at once.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_deferred_and_the_second_stops(number: signal.Signals) -> None:
    with deferred_interrupts() as is_stop_requested:
        assert not is_stop_requested()
        signal.raise_signal(number)
        assert is_stop_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_interrupts() as is_stop_requested:
            signal.raise_signal(signal.SIGHUP)
            assert not is_stop_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with deferred_interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_does_not_change_handlers() -> None:
    before, handlers = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with deferred_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [before]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_saved_and_the_printed_command_continues_it_exactly(
    tmp_path: Path,
    spawn: Spawn,
    until: Callable[..., None],
    command: Any,
    tiny: tuple[str, ...],
    number: signal.Signals,
) -> None:
    args = (*tiny[:-1], "algorithm=fedavgm", "checkpoint_seconds=1000")  # in place of the last of `tiny`
    process = spawn("-m", "manyeyes", "run", *args, "rounds=1000000", "folder=my run")
    metrics = tmp_path / "my run" / "metrics.jsonl"
    until(lambda: process.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    match = re.fullmatch(
        rf"{FIRST_MESSAGE}manyeyes: Stopped after round (\d+) of 1000000; the run is saved\. "
        r"Continue with: manyeyes (.*)\n",
        stderr,
    )
    assert match, stderr
    assert process.returncode == 130
    assert metrics.read_bytes().count(b"\n") == int(match[1]) + 1

    more_rounds = f"rounds={int(match[1]) + 5}"
    assert command(*shlex.split(match[2]), more_rounds).code == 0
    assert command("run", *args, more_rounds, "folder=uninterrupted").code == 0
    continued, uninterrupted = (tmp_path / name / "model.safetensors" for name in ("my run", "uninterrupted"))
    assert continued.read_bytes() == uninterrupted.read_bytes()


ENDLESS_ROUND = """
import sys, time
from manyeyes.cli import main
from manyeyes.engines.reference import ReferenceEngine

def train_endlessly(*_):
    print("in a round", flush=True)
    while True:
        time.sleep(0.01)

ReferenceEngine.train = train_endlessly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_second_ctrl_c_stops_in_the_middle_of_a_round(spawn: Spawn, tiny: tuple[str, ...]) -> None:
    process = spawn("-c", ENDLESS_ROUND, "run", *tiny, "engine=reference", "folder=a")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "in a round\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() + process.stderr.readline() == FIRST_MESSAGE
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "manyeyes: stopped\n")
