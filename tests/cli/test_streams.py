"""Streams that are closed, full or gone, and signals at the start of a command: no traceback, and nothing is lost."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from manyeyes.training import checkpoint

Spawn = Callable[..., "subprocess.Popen[str]"]
FILE_NUMBER = "from manyeyes.cli.streams import *; prepare_streams(); print(open('x', 'w').fileno(), file=sys.stderr)"


def shell(tmp_path: Path, redirection: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python with streams that a shell redirects."""
    command = ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, *args]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_a_full_standard_output_is_one_sentence(tmp_path: Path) -> None:
    outcome = shell(tmp_path, ">/dev/full", "-m", "manyeyes", "--version")
    assert (outcome.returncode, outcome.stderr) == (1, "manyeyes: standard output: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_that_cannot_be_printed_still_has_its_code(tmp_path: Path, redirection: str) -> None:
    outcome = shell(tmp_path, redirection, "-m", "manyeyes", "nonsense")
    assert (outcome.returncode, outcome.stdout) == (2, "")


@pytest.mark.parametrize("redirection", [">&-", ">&- <&-", "<&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path, redirection: str) -> None:
    outcome = shell(tmp_path, redirection, "-c", FILE_NUMBER)
    assert int(outcome.stderr) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.4])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(spawn: Spawn, seconds: float) -> None:
    interrupt = f"threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGINT)).start()"
    code = f"import os, signal, sys, threading; from manyeyes.__main__ import main; {interrupt}; sys.exit(main())"
    process = spawn("-c", code, "run", "--help", env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode in (0, -signal.SIGINT, 130)


def test_a_full_shared_memory_is_named(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("only root can mount a small /dev/shm")
    code = "from manyeyes.data.clean_spawn import process_pool; process_pool(2)"
    mount = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/x"
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "{code}"', sys.executable]
    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert outcome.stderr.splitlines()[-1] == "OSError: [Errno 28] No space left on device: '/dev/shm'"


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_is_saved(
    tmp_path: Path, tiny: tuple[str, ...], until: Callable[..., None]
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "manyeyes", "run", *tiny, "rounds=1000000", "folder=run"])
    metrics = tmp_path / "run" / "metrics.jsonl"
    os.set_blocking(terminal, False)

    def has_trained() -> bool:
        with suppress(BlockingIOError):
            os.read(terminal, 2**16)  # the progress bar
        return metrics.exists() and metrics.read_bytes().count(b"\n") > 3

    until(has_trained)
    os.close(terminal)  # the system sends SIGHUP
    until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
    saved = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors", torch.device("cpu")).state.round
    assert saved == metrics.read_bytes().count(b"\n") - 1  # the first line is that of the untrained model
    assert not (tmp_path / "run" / "failed.txt").exists()


@pytest.mark.slow
def test_a_clock_that_goes_back_changes_nothing(
    command: Any, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("run", *tiny, "rounds=2", "folder=first").code == 0
    now = iter(range(2_000_000_000, 0, -1000))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(now)))
        patch.setattr(time, "time_ns", lambda: next(now) * 10**9)
        assert command("run", *tiny, "rounds=1", "folder=second").code == 0
        assert command("run", "resume=second", "rounds=2").code == 0
    os.utime(tmp_path / "second" / "model.safetensors", (0, 0))  # written before the metrics, by its time
    for name in ("model.safetensors", "per_user.csv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    outcome = command("report", "second")
    assert (outcome.code, outcome.err) == (0, "")
    assert "finished" in (tmp_path / "second" / "report.html").read_text()
