"""Checkpoints are restored completely, bad ones are refused, and tensor files are complete or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint
from manyeyes.training.checkpoint import CallbackState, Checkpoint, write_tensors
from tests.training.small_runs import equal_tensors

CPU = torch.device("cpu")
NO_CLIENTS = torch.zeros(0, 4, dtype=torch.int64)


def full_checkpoint() -> Checkpoint:
    opt_state = {"mean": torch.rand(4), "square": torch.rand(4)}
    state = ServerState(7, torch.rand(5), opt_state, torch.rand(4), {"clip": torch.rand(1)}, {"center": torch.rand(5)})
    clients = torch.tensor([[3, 0, 24, 2**32 - 1], [17, 24, 32, 7]])
    callbacks: dict[str, CallbackState] = {
        "best": {"weights": torch.rand(5), "loss": 0.5},
        "counter": {"calls": [1, 2]},
    }
    return Checkpoint(state, clients, 123, "abc", callbacks)


def test_everything_is_restored(tmp_path: Path) -> None:
    saved = full_checkpoint()
    checkpoint.save(tmp_path / "c", saved)
    loaded = checkpoint.load(tmp_path / "c", CPU)
    assert (loaded.state.round, loaded.metrics_bytes, loaded.fingerprint) == (7, 123, "abc")
    assert torch.equal(loaded.state.weights, saved.state.weights)
    assert loaded.state.correction_state is not None
    assert saved.state.correction_state is not None
    assert torch.equal(loaded.state.correction_state, saved.state.correction_state)
    for name in ("opt_state", "privacy_state", "aggregator_state"):
        assert equal_tensors(getattr(loaded.state, name), getattr(saved.state, name))
    assert torch.equal(loaded.clients, saved.clients)
    assert loaded.callbacks["counter"] == {"calls": [1, 2]}
    assert loaded.callbacks["best"]["loss"] == 0.5
    assert torch.equal(loaded.callbacks["best"]["weights"], saved.callbacks["best"]["weights"])


def test_a_state_of_weights_only_is_restored(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", Checkpoint(ServerState(0, torch.rand(5), {}, None), NO_CLIENTS, 0, ""))
    loaded = checkpoint.load(tmp_path / "c", CPU)
    assert (loaded.state.opt_state, loaded.state.correction_state, len(loaded.clients)) == ({}, None, 0)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, full_checkpoint())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"is not a checkpoint of manyeyes or is damaged: start a new run\.$"):
        checkpoint.load(path, CPU)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    save_file({"weights": torch.rand(5)}, tmp_path / "c")
    with pytest.raises(ValueError, match="is not a checkpoint of manyeyes"):
        checkpoint.load(tmp_path / "c", CPU)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, full_checkpoint())
    save_file(load_file(path), path, {"manyeyes": json.dumps({"version": 99})})
    with pytest.raises(ValueError, match=r"has checkpoint version 99 and this version of manyeyes reads \d+: continue"):
        checkpoint.load(path, CPU)


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": torch.arange(3)}, {"purpose": "test"})
    assert load_file(tmp_path / "a")["x"].tolist() == [0, 1, 2]


def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_to_full_disk(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"ha")
        # As safetensors 0.8.0 does on a full tmpfs.
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", save_to_full_disk)
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
