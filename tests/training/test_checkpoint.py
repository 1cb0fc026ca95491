"""Checkpoints: everything comes back, and a bad one is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import Index
from tests.training.small_runs import same

CPU = torch.device("cpu")


def whole() -> Checkpoint:
    server = {"mean": torch.rand(4), "square": torch.rand(4)}
    kinds = ((("control", "float32", (4,)), ("slot0", "float32", (4,))), (("personal", "float32", (2,)),))
    clients = Index(kinds, np.array([3, 17]), np.array([[0, 0, 2**32 - 1], [1, 32, 7]]))
    return Checkpoint(ServerState(7, torch.rand(5), server, torch.rand(4)), clients, 123, "abc")


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = whole()
    checkpoint.save(tmp_path / "c", saved)
    found = checkpoint.load(tmp_path / "c", CPU)
    assert found.state.round == 7
    assert (found.metrics_bytes, found.fingerprint) == (123, "abc")
    assert torch.equal(found.state.weights, saved.state.weights)
    assert same(found.state.opt_state, dict(saved.state.opt_state))
    assert found.state.correction_state is not None
    assert saved.state.correction_state is not None
    assert torch.equal(found.state.correction_state, saved.state.correction_state)
    assert found.clients.kinds == saved.clients.kinds
    assert found.clients.keys.tolist() == [3, 17]
    assert found.clients.records.tolist() == saved.clients.records.tolist()


def test_a_state_without_server_correction_and_clients_comes_back(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", Checkpoint(ServerState(0, torch.rand(5), {}, None), Index(), 0, ""))
    found = checkpoint.load(tmp_path / "c", CPU)
    assert (found.state.opt_state, found.state.correction_state, len(found.clients.keys)) == ({}, None, 0)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_cut_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, whole())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"is not a checkpoint of this program, or is damaged: start the run anew$"):
        checkpoint.load(path, CPU)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    save_file({"weights": torch.rand(5)}, tmp_path / "c")
    with pytest.raises(ValueError, match="is not a checkpoint of this program"):
        checkpoint.load(tmp_path / "c", CPU)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, whole())
    save_file(load_file(path), path, {"manyeyes": json.dumps({"version": 99})})
    with pytest.raises(ValueError, match=r"has checkpoint version 99, and this program reads 2$"):
        checkpoint.load(path, CPU)
