"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from manyeyes.run import files
from manyeyes.run.files import write_tensors, write_text, write_whole


def test_text_is_written_as_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "größe\n")
    assert (tmp_path / "a.txt").read_bytes() == b"gr\xc3\xb6\xc3\x9fe\n"


def test_tensors_come_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": torch.arange(3)}, {"why": "test"})
    assert load_file(tmp_path / "a")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def half(beside: Path) -> None:
        beside.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, about: object) -> None:
        path.write_bytes(b"ha")
        raise SafetensorError(
            "I/O error: No space left on device (os error 28)"
        )  # as safetensors 0.8.0 does on a full tmpfs

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tensors(tmp_path / "model", {})
    assert caught.value.filename == str(tmp_path / "model")
    assert os.listdir(tmp_path) == []
