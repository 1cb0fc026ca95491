"""Sweeps with Hydra's launchers: every run in its own process, as on a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from manyeyes.training.run_folder import read_events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "package", "option"),
    [
        ("submitit_local", "hydra_plugins.hydra_submitit_launcher", "hydra.launcher.timeout_min=5"),
        ("joblib", "hydra_plugins.hydra_joblib_launcher", "hydra.launcher.n_jobs=2"),
    ],
)
def test_a_launcher_reports_a_failed_run_and_finishes_the_others(
    spawn: Callable[..., subprocess.Popen[str]],
    tiny: tuple[str, ...],
    tmp_path: Path,
    launcher: str,
    package: str,
    option: str,
) -> None:
    pytest.importorskip(package)
    sweep = ("--multirun", f"hydra/launcher={launcher}", option, "hydra.sweep.dir=sweep")
    run = ("run", *sweep, *tiny, "engine=reference", "rounds=1", "algorithm.epochs=0,1,2")
    process = spawn("-m", "manyeyes", *run)  # a process of its own, since launchers replace its output streams
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 2  # the failed run has a wrong setting
    assert "manyeyes: run 0: " in errors
    assert "epochs" in errors
    assert not (tmp_path / "sweep" / "0" / "model.safetensors").exists()
    for number in (1, 2):
        assert len(read_events(tmp_path / "sweep" / str(number) / "metrics.jsonl")) == 2
        assert (tmp_path / "sweep" / str(number) / "model.safetensors").exists()
