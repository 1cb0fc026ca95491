"""Ctrl-C: the run is saved, and the person is told how to go on."""

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

from manyeyes.training.loop import Interrupt

Spawn = Callable[..., "subprocess.Popen[str]"]
FIRST = "\nFinishing this round, then saving; press Ctrl-C again to stop at once.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_stops(number: signal.Signals) -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(number)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_leaves_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_saved_and_the_printed_command_continues_it_exactly(
    tmp_path: Path,
    spawn: Spawn,
    until: Callable[..., None],
    command: Any,
    tiny: tuple[str, ...],
    number: signal.Signals,
) -> None:
    words = (*tiny, "algorithm=fedavgm", "checkpoint_seconds=1000")
    process = spawn("-m", "manyeyes", "run", *words, "rounds=1000000", "folder=my run")
    metrics = tmp_path / "my run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 3)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    found = re.fullmatch(
        rf"{FIRST}manyeyes: Stopped after round (\d+) of 1000000; the run is saved\. Continue with: manyeyes (.*)\n",
        said,
    )
    assert found, said
    assert process.returncode == 130
    assert metrics.read_bytes().count(b"\n") == int(found[1]) + 1

    enough = f"rounds={int(found[1]) + 5}"
    assert command(*shlex.split(found[2]), enough).code == 0
    assert command("run", *words, enough, "folder=straight").code == 0
    stopped, straight = (tmp_path / name / "model.safetensors" for name in ("my run", "straight"))
    assert stopped.read_bytes() == straight.read_bytes()


SLOW = """
import sys, time
from manyeyes.cli import main
from manyeyes.engines.reference import Reference

def endless(*_):
    print("in a round", flush=True)
    while True:
        time.sleep(0.01)

Reference.train = endless
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_ctrl_c_stops_in_the_middle_of_a_round(spawn: Spawn, tiny: tuple[str, ...]) -> None:
    process = spawn("-c", SLOW, "run", *tiny, "engine=reference", "folder=a")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "in a round\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() + process.stderr.readline() == FIRST
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "manyeyes: stopped\n")
