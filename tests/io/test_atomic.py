"""Atomic writes: a file is complete or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from manyeyes.io.files import atomic_write, write_bytes, write_text


def test_text_is_written_as_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "größe\n")
    assert (tmp_path / "a.txt").read_bytes() == b"gr\xc3\xb6\xc3\x9fe\n"


def test_bytes_replace_the_old_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.bin", b"old")
    write_bytes(tmp_path / "a.bin", b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def write_half(temp_path: Path) -> None:
        temp_path.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        atomic_write(path, write_half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
