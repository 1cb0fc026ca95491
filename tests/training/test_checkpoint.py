"""Checkpoints are restored completely, and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from manyeyes.core.state import ServerState
from manyeyes.io.tensors import read_tensors, write_tensors
from manyeyes.training import checkpoint
from manyeyes.training.checkpoint import CallbackState, Checkpoint
from tests.damage import flip_bit
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


def test_a_changed_bit_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, full_checkpoint())
    data, seen = path.read_bytes(), checkpoint.load(path, CPU)
    for bit in np.random.default_rng(0).choice(8 * len(data), 60, replace=False).tolist():
        flip_bit(path, bit)
        with pytest.raises(ValueError, match="is not a checkpoint of manyeyes or is damaged"):
            checkpoint.load(path, CPU)
        path.write_bytes(data)
    assert torch.equal(checkpoint.load(path, CPU).state.weights, seen.state.weights)


def test_a_checkpoint_of_the_version_without_checksums_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, full_checkpoint())
    tensors, texts, _ = read_tensors(path)
    metadata = json.loads(texts["manyeyes"])
    del metadata["metrics_crc"]
    save_file(tensors, path, {"manyeyes": json.dumps(metadata)})
    with pytest.raises(ValueError, match="is damaged"):  # a checkpoint of this version has a checksum
        checkpoint.load(path, CPU)
    save_file(tensors, path, {"manyeyes": json.dumps(metadata | {"version": 4})})
    assert checkpoint.load(path, CPU).metrics_crc is None


@pytest.mark.parametrize(
    "change",
    [
        {"round": -5},
        {"round": "7"},
        {"round": None},
        {"metrics_bytes": 1.5},
        {"fingerprint": 3},
        {"callbacks": []},
        {"callbacks": {"best": 3}},
    ],
    ids=str,
)
def test_values_of_wrong_types_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, full_checkpoint())
    tensors, texts, _ = read_tensors(path)
    write_tensors(path, tensors, {"manyeyes": json.dumps(json.loads(texts["manyeyes"]) | change)})
    with pytest.raises(ValueError, match="is not a checkpoint of manyeyes or is damaged"):
        checkpoint.load(path, CPU)
