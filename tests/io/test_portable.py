"""The functions that take the place of POSIX functions, compared with these, and a run without POSIX functions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyeyes.io.portable import seek_and_fill, seek_and_read

CONTENT = bytes(range(100))
WITHOUT_POSIX = """
import ctypes, multiprocessing, os, signal, sys, types
import concurrent.futures.process, hydra, numpy, torch  # which choose their functions by the name of the system
for name in ("pread", "preadv", "fork", "register_at_fork", "killpg", "getuid", "geteuid", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL"):
    delattr(signal, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda file, mode, size: None)
load = ctypes.CDLL.__init__
def refuse_none(self, name, *args, **options):
    if name is None:
        raise TypeError("Windows has no such library")
    load(self, name, *args, **options)
ctypes.CDLL.__init__ = refuse_none
multiprocessing.get_all_start_methods = lambda: ["spawn"]
from manyeyes.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("size", [1, 40, 200])
@pytest.mark.parametrize("offset", [0, 70, 120])
def test_reading_at_an_offset_equals_the_function_of_posix(tmp_path: Path, size: int, offset: int) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    with (tmp_path / "file").open("rb") as file:
        assert seek_and_read(file.fileno(), size, offset) == os.pread(file.fileno(), size, offset)


@pytest.mark.parametrize("offset", [0, 70, 95, 120])
def test_filling_buffers_at_an_offset_equals_the_function_of_posix(tmp_path: Path, offset: int) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    ours, posix = ([bytearray(20), bytearray(15)] for _ in range(2))
    with (tmp_path / "file").open("rb") as file:
        count = seek_and_fill(file.fileno(), ours, offset)
        assert count == os.preadv(file.fileno(), posix, offset)
    assert ours == posix


@pytest.mark.slow
def test_the_reference_engine_and_reports_need_no_function_of_posix(tmp_path: Path) -> None:
    """What can be tried of Windows on another system: its missing functions are removed."""

    def command(*args: str) -> subprocess.CompletedProcess[str]:
        code = [sys.executable, "-c", WITHOUT_POSIX, *args]
        return subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    run = ("run", "data.users=10", "rounds=1", "algorithm.cohort_size=2", "folder=run")
    outcome = command(*run)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    outcome = command("report", "run")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    outcome = command(*run[:-1], "folder=other", "engine=multiprocess")
    assert outcome.returncode == 2
    assert "engine=multiprocess does not support this system, which cannot fork a process" in outcome.stderr
