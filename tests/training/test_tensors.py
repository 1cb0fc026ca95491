"""Tensors in files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from manyeyes.training import tensors
from manyeyes.training.checkpoint import write_tensors


def test_tensors_come_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": torch.arange(3)}, {"why": "test"})
    assert load_file(tmp_path / "a")["x"].tolist() == [0, 1, 2]


def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, about: object) -> None:
        path.write_bytes(b"ha")
        raise SafetensorError(
            "I/O error: No space left on device (os error 28)"
        )  # as safetensors 0.8.0 does on a full tmpfs

    monkeypatch.setattr(tensors, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tensors(tmp_path / "model", {})
    assert caught.value.filename == str(tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_whoever_may_read_other_files_may_read_tensors_too(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for _ in range(2):  # also in place of one
        write_tensors(tmp_path / "model", {"a": torch.ones(3)})
        assert (tmp_path / "model").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["model", "other"]
