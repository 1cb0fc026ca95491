"""Sweeps by Hydra's launchers: every run in a process of its own, as on a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from manyeyes.training.run_folder import read_events


@pytest.mark.parametrize(
    ("launcher", "package", "words"),
    [
        ("submitit_local", "hydra_plugins.hydra_submitit_launcher", "hydra.launcher.timeout_min=5"),
        ("joblib", "hydra_plugins.hydra_joblib_launcher", "hydra.launcher.n_jobs=2"),
    ],
)
def test_a_launcher_runs_every_run_of_a_sweep_and_one_that_fails_is_told_and_stops_no_other(
    spawn: Callable[..., subprocess.Popen[str]],
    tiny: tuple[str, ...],
    tmp_path: Path,
    launcher: str,
    package: str,
    words: str,
) -> None:
    pytest.importorskip(package)
    sweep = ("--multirun", f"hydra/launcher={launcher}", words, "hydra.sweep.dir=sweep")
    run = ("run", *sweep, *tiny, "engine=reference", "rounds=1", "algorithm.epochs=0,1,2")
    process = spawn("-m", "manyeyes", *run)  # of its own: launchers exchange the streams of the one they are in
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "manyeyes: run 0: " in said
    assert "epochs" in said
    assert not (tmp_path / "sweep" / "0" / "model.safetensors").exists()
    for number in (1, 2):
        assert len(read_events(tmp_path / "sweep" / str(number) / "metrics.jsonl")) == 2
        assert (tmp_path / "sweep" / str(number) / "model.safetensors").exists()
