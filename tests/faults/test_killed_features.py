"""Features whose computation is killed at an operation on a file: at each of them, and within the commands.

A process of its own gets the fault, so what is patched in it need not be restored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from manyeyes.core.population import Floats, Ints
from manyeyes.data import feature_file
from manyeyes.data.feature_file import FeatureFile
from manyeyes.training import features
from tests.faults.file_layer import FAULTS, Fault, FileLayer, file_layer
from tests.faults.power_loss import Event
from tests.faults.workloads import files_below, succeed

NUM_ROWS, CHUNK_ROWS = 20, 8


def features_of(rows: Ints) -> Floats:
    return np.sqrt(np.outer(rows + 1, np.arange(3)), dtype=np.float32)


def compute(folder: Path) -> None:
    file = FeatureFile(folder, NUM_ROWS, 3)
    file.compute(np.arange(NUM_ROWS), features_of, {"model": "m"}, lambda done, total: None)


def kill_before(number: int) -> Fault:
    """Return a fault at an operation that ends the process before it."""

    def kill(layer: FileLayer, kind: str, path: str) -> OSError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")

    pytest.MonkeyPatch().setattr(FileLayer, "error", kill)
    return Fault(FAULTS["I/O error once"], number)


def kill_after(number: int) -> Fault:
    """Return a fault that ends the process right after an operation; a write has written one half."""
    record = FileLayer.record

    def kill(layer: FileLayer, event: Event) -> None:
        record(layer, event)
        if len(layer.operations) == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(FileLayer, "record", kill)
    return Fault(FAULTS["short write"], number)


def run_apart(root: Path, function: Callable[[], object], make_fault: Callable[[], Fault]) -> bool:
    """Call a function in a process of its own, with a fault in a folder; return whether the process was killed."""
    child = os.fork()
    if not child:
        try:
            with file_layer(root, make_fault()):
                function()
        finally:
            os._exit(0)  # without what pytest does at the end
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def num_operations(root: Path) -> int:
    """Return how many operations on files the computation of features has."""
    root.mkdir()
    with file_layer(root) as layer:
        compute(root / "features")
    return len(layer.operations)


@pytest.mark.slow
@pytest.mark.parametrize("make_fault", [kill_before, kill_after])
def test_features_killed_at_any_operation_are_continued_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_fault: Callable[[int], Fault]
) -> None:
    monkeypatch.setattr(feature_file, "CHUNK_ROWS", CHUNK_ROWS)
    count, kills = num_operations(tmp_path / "uninterrupted"), 0
    expected = files_below(tmp_path / "uninterrupted" / "features")
    for number in range(count):
        root = tmp_path / str(number)
        root.mkdir()
        kills += run_apart(root, partial(compute, root / "features"), partial(make_fault, number))
        compute(root / "features")
        assert files_below(root / "features") == expected, f"killed at operation {number}"
    assert kills > 20


SETTINGS = (
    *("data.users=20", "data.images_per_user=8", "model=lenet", "model.trainable=last:1", "engine.features=on"),
    *("algorithm.cohort_size=2", "engine.threads=1", "evaluate_every=0", "rounds=2"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "make_fault", "number"), [("data embed", kill_after, 10), ("run", kill_before, 9)])
def test_a_command_killed_while_it_computes_features_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, make_fault: Callable[[int], Fault], number: int
) -> None:
    for module in (feature_file, features):
        monkeypatch.setattr(module, "CHUNK_ROWS", 64)
    results = []
    for name in ("uninterrupted", "killed"):
        cache, folder = tmp_path / name / "cache", tmp_path / name / "run"
        cache.mkdir(parents=True)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        args = (*command.split(), *SETTINGS, *([f"folder={folder}"] if command == "run" else []))
        if name == "killed":
            assert run_apart(cache, partial(succeed, args), partial(make_fault, number))
        succeed(args)
        model = (folder / "model.safetensors").read_bytes() if command == "run" else b""
        results.append((files_below(cache), model))
    assert results[1] == results[0]
