"""A run folder: one process at a time, one run in it, and all that is needed to repeat it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from manyeyes.training.run_folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from manyeyes.training.run_folder import RunFolder
with RunFolder(Path("run")):
    print("held", flush=True)
    sys.stdin.read()
"""
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def holder(spawn: Spawn) -> subprocess.Popen[str]:
    """Another process that holds the folder `run`."""
    process = spawn("-c", HOLDER, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_in_use_by_another_process_is_refused_by_its_number(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(ValueError, match=f"run is in use by process {holder.pid}: wait for it, or choose another"):
        RunFolder(tmp_path / "run").__enter__()


def test_a_folder_opens_again_after_its_process_was_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    with RunFolder(tmp_path / "run"):
        pass


def test_a_folder_opens_again_after_use(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path / "run"):
            pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"run folder .*file/run cannot be made: Not a directory$"):
        RunFolder(tmp_path / "file" / "run").__enter__()


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "model.safetensors"])
def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with RunFolder(tmp_path) as folder, pytest.raises(ValueError, match="already holds a run: continue it with resume"):
        folder.create()


def test_a_folder_whose_run_ended_before_its_first_checkpoint_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n')
    with RunFolder(tmp_path) as folder:
        folder.create()


def test_settings_and_environment_are_written_down(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.create()
        folder.describe({"rounds": 3, "algorithm": {"lr": 0.1}})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"rounds": 3, "algorithm": {"lr": 0.1}}
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment.keys() >= {"python", "platform", "cpus", "processor", "threads", "gpu", "revision", "command"}


def test_nothing_to_continue_is_said_in_one_sentence(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder, pytest.raises(ValueError, match="has no checkpoint to continue from"):
        folder.load(torch.device("cpu"), "")
