"""Tensor files are complete or not there, and refused if they have changed since they were written."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from manyeyes.io import tensors as module
from manyeyes.io.tensors import read_tensors, write_tensors
from tests.damage import flip_bit

TENSORS = {
    "a": torch.rand(2, 3),
    "b": torch.tensor(5),
    "c": torch.rand(3, dtype=torch.float64),
    "d": torch.tensor([True, False]),
    "e": torch.rand(4).to(torch.bfloat16),
    "f": torch.zeros(0),
}


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", TENSORS, {"purpose": "test"})
    for content in (read_tensors(tmp_path / "t").tensors, load_file(tmp_path / "t")):  # by other programs too
        assert content.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert torch.equal(content[name], tensor) and content[name].dtype == tensor.dtype
    assert read_tensors(tmp_path / "t")[1:] == ({"purpose": "test"}, True)


def test_the_checksum_is_the_crc_32_of_the_metadata_and_each_tensor() -> None:
    content = b'[["k", "v"]]["x", "torch.int16", [2]]\x01\x00\x02\x00'
    assert module.checksum({"x": torch.tensor([1, 2], dtype=torch.int16)}, {"k": "v"}) == zlib.crc32(content)


def test_a_changed_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_tensors(path, TENSORS, {"purpose": "test"})
    data = path.read_bytes()
    messages = []
    for bit in np.random.default_rng(1).choice(8 * len(data), 150, replace=False).tolist():
        flip_bit(path, bit)
        try:
            content = read_tensors(path)
        except ValueError as error:
            messages.append(str(error))
        else:  # only the name of the checksum itself can change unseen
            assert not content.has_checksum
            assert all(torch.equal(content.tensors[name], tensor) for name, tensor in TENSORS.items())
        path.write_bytes(data)
    assert len(messages) > 130
    assert all(f"{path} is damaged" in message for message in messages)


def test_a_file_of_another_program_has_no_checksum(tmp_path: Path) -> None:
    save_file({"x": torch.ones(3)}, tmp_path / "t")
    content = read_tensors(tmp_path / "t")
    assert (content.metadata, content.has_checksum) == ({}, False)
    assert content.tensors["x"].tolist() == [1, 1, 1]


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    write_tensors(tmp_path / "t", {"all": shared, "part": shared[::2]})
    assert read_tensors(tmp_path / "t").tensors["part"].tolist() == [0, 2, 4]


def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to_full_disk(path: Path, data: bytes) -> None:
        path.write_text("ha")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_to_full_disk)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tensors(tmp_path / "model", {})
    assert caught.value.filename == str(tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_tensor_files_have_the_permissions_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for _ in range(2):  # the second one replaces the first
        write_tensors(tmp_path / "model", {"a": torch.ones(3)})
        assert (tmp_path / "model").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["model", "other"]


def test_the_same_tensors_and_metadata_are_the_same_bytes(tmp_path: Path) -> None:
    metadata = {name: name for name in "fedcba"}  # in one of 5,040 orders
    for name in ("first", "second"):
        write_tensors(tmp_path / name, {"b": torch.arange(3.0), "a": torch.ones(2, dtype=torch.int8)}, metadata)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert read_tensors(tmp_path / "first").metadata == metadata
    assert load_file(tmp_path / "first")["b"].tolist() == [0.0, 1.0, 2.0]
