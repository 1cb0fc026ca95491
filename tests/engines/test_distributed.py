"""Training on several processes: ranks of torchrun over Gloo equal one process, or report which error ended them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Until = Callable[[Callable[[], bool]], None]
OVERRIDES = (
    "data.users=60",
    "model=linear",
    "rounds=4",
    "evaluate_every=2",
    "algorithm.cohort_size=5",
    "algorithm.batch_size=8",
)
RUNS: dict[str, tuple[str, ...]] = {
    "fedavgm": ("algorithm=fedavgm",),
    "small cohort": ("algorithm.cohort_size=2",),
    "large images": ("data.size=128", "algorithm.lr=0.001"),  # a layer that a rank replaces on some CPUs
    "scaffold": ("algorithm=scaffold", "algorithm.lr=0.01"),
    "mimelite": ("algorithm=mimelite",),
    "cuda_graphs": ("algorithm=fedavgm", "engine=cuda_graphs"),
    "vmap": ("algorithm=scaffold", "algorithm.lr=0.01", "engine=vmap"),
    "personal": ("algorithm=fedper", "model=lenet", "model.width=4", "data.split=per_user"),
    "compressed": ("compressor=topk", "compressor.fraction=1.0"),  # with less, rounding decides which values are sent
    "median": ("aggregator=median", "client_weighting=uniform"),
    "private": (
        "client_weighting=uniform",
        "sampler=poisson",
        "sampler.cohort_size=5",
        "privacy=flair",
        "privacy.noise_cohort_size=20",
        "privacy.reproducible_noise=true",
    ),
}
SCRIPT = """
import json, sys
from manyeyes.cli import main
from manyeyes.engines.distributed.process_group import shutdown
shutdown(max(main(["run", *overrides]) for overrides in json.loads(sys.argv[1])))
"""


def start_ranks(num_ranks: int, *args: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return subprocess.Popen(
        [*command, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        cwd=cwd,
    )


def start_run(num_ranks: int, *overrides: str, cwd: Path) -> subprocess.Popen[str]:
    return start_ranks(num_ranks, "-m", "manyeyes", "run", *overrides, cwd=cwd)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a process and its standard error."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def load_events(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without the times."""
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in event.items() if name != "seconds"} for event in events]


def assert_same_run(actual: Path, expected: Path) -> None:
    weights = load_weights(actual)
    for name, tensor in load_weights(expected).items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-7, msg=f"{name} differs")
    for event, expected_event in zip(load_events(actual), load_events(expected), strict=True):
        assert event == pytest.approx(expected_event, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "names"), [(2, list(RUNS)), (3, ["scaffold", "small cohort"])])
def test_several_ranks_equal_one_process(
    command: Callable[..., Any], tmp_path: Path, num_ranks: int, names: list[str]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [[*OVERRIDES, *RUNS[name], f"folder=several/{name}"] for name in names]
    code, err = finish(start_ranks(num_ranks, "script.py", json.dumps(runs), cwd=tmp_path))
    assert code == 0, err
    for name in names:
        overrides = [override for override in RUNS[name] if not override.startswith("engine=")]
        assert command("run", *OVERRIDES, *overrides, "engine=reference", f"folder=one/{name}").code == 0
        assert_same_run(tmp_path / "several" / name, tmp_path / "one" / name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_ranks_on_one_gpu_equal_one_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    exact = (*OVERRIDES, "engine.device=cuda", "engine.precision=float32", "engine.compile=false")
    for num_ranks in (1, 2):
        runs = [
            [*exact, *RUNS[name], f"engine={engine}", f"folder={num_ranks}/{engine}/{name}"]
            for engine in ("reference", "cuda_graphs", "vmap")
            for name in ("fedavgm", "scaffold", "personal", "private")
        ]
        code, err = finish(start_ranks(num_ranks, "script.py", json.dumps(runs), cwd=tmp_path))
        assert code == 0, err
    for folder in (tmp_path / "1").glob("*/*"):
        assert_same_run(tmp_path / "2" / folder.relative_to(tmp_path / "1"), folder)


def child_pids(process: subprocess.Popen[str]) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in listing.stdout.split()]


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_and_any_number_of_ranks_continues_it(
    command: Callable[..., Any], tmp_path: Path, until: Until
) -> None:
    overrides = (
        *OVERRIDES[:2],
        "algorithm=scaffold",
        "algorithm.lr=0.01",
        "algorithm.cohort_size=5",
        "checkpoint_seconds=0",
        "evaluate_every=0",
    )
    process = start_run(2, *overrides, "rounds=100000", "folder=a", cwd=tmp_path)
    metrics = tmp_path / "a" / "metrics.jsonl"
    until(lambda: count_lines(metrics) > 4)
    os.kill(sorted(child_pids(process))[1], signal.SIGKILL)
    code, err = finish(process)
    assert code != 0
    assert "another process of this training has ended" in err
    assert "is saved" in err and "resume=a" in err
    rounds = count_lines(metrics) + 3
    code, err = finish(start_run(3, "resume=a", f"rounds={rounds}", cwd=tmp_path))
    assert code == 0, err
    assert command("run", *overrides, f"rounds={rounds}", "engine=reference", "folder=b").code == 0
    weights = load_weights(tmp_path / "a")
    for name, tensor in load_weights(tmp_path / "b").items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_ctrl_c_saves_the_run_after_the_same_round_on_every_rank(tmp_path: Path, until: Until) -> None:
    process = start_run(2, *OVERRIDES[:2], "rounds=100000", "evaluate_every=0", "folder=a", cwd=tmp_path)
    until(lambda: count_lines(tmp_path / "a" / "metrics.jsonl") > 4)
    for pid in child_pids(process):
        os.kill(pid, signal.SIGINT)
    _, err = finish(process)
    match = re.search(r"Stopped after round (\d+) of 100000; the run is saved", err)
    assert match, err
    assert err.count("Stopped after round") == 1
    assert count_lines(tmp_path / "a" / "metrics.jsonl") == int(match[1]) + 1


@pytest.mark.slow
def test_a_wrong_setting_is_reported_once(tmp_path: Path) -> None:
    code, err = finish(start_run(2, "algorithm.cohort_size=100000", cwd=tmp_path))
    assert code != 0
    assert err.count("is more than the 1000 users of the data") == 1
