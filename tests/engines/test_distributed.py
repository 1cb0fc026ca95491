"""Many processes, one training: real ranks of torchrun over Gloo give what one process gives, or say who is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

WORK = (
    "data.users=60",
    "model=linear",
    "rounds=4",
    "evaluate_every=2",
    "algorithm.cohort_size=5",
    "algorithm.batch_size=8",
)
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "fedavgm": ("algorithm=fedavgm",),
    "few": ("algorithm.cohort_size=2",),
    "large": ("data.size=128", "algorithm.lr=0.001"),  # a layer that a rank exchanges for a faster one, on some cores
    "scaffold": ("algorithm=scaffold", "algorithm.lr=0.01"),
    "mimelite": ("algorithm=mimelite",),
    "cuda_graphs": ("algorithm=fedavgm", "engine.name=cuda_graphs"),
    "vmap": ("algorithm=scaffold", "algorithm.lr=0.01", "engine.name=vmap"),
    "personal": ("algorithm=fedper", "model=lenet", "model.width=4", "data.split=per_user"),
    "packed": ("compress=topk", "compress.share=1.0"),  # less, and rounding decides which numbers are the largest
    "median": ("aggregate=median", "algorithm.weigh=equally"),
    "private": (
        "algorithm.weigh=equally",
        "algorithm.select=poisson",
        "privacy=flair",
        "privacy.noise_cohort=20",
        "privacy.reproducible_noise=true",
    ),
}


SEVERAL = """
import json, sys
from manyeyes.cli import main
from manyeyes.engines.distributed.process_group import leave
leave(max(main(["run", *words]) for words in json.loads(sys.argv[1])))
"""


def torchrun(ranks: int, *words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        cwd=cwd,
    )


def run(ranks: int, *words: str, cwd: Path) -> subprocess.Popen[str]:
    return torchrun(ranks, "-m", "manyeyes", "run", *words, cwd=cwd)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: Path, other: Path) -> None:
    for name, tensor in weights(one).items():
        torch.testing.assert_close(
            weights(other)[name], tensor, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )
    for mine, theirs in zip(events(one), events(other), strict=True):
        assert {k: v for k, v in mine.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in theirs.items() if k != "seconds"}, rel=1e-4
        )


@pytest.mark.parametrize(("ranks", "names"), [(2, list(ALGORITHMS)), (3, ["scaffold", "few"])])
def test_ranks_give_what_one_process_gives(
    command: Callable[..., Any], tmp_path: Path, ranks: int, names: list[str]
) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    jobs = [[*WORK, *ALGORITHMS[name], f"folder=many/{name}"] for name in names]
    code, said = finished(torchrun(ranks, "several.py", json.dumps(jobs), cwd=tmp_path))
    assert code == 0, said
    for name in names:
        assert command("run", *WORK, *ALGORITHMS[name], "engine=reference", f"folder=one/{name}").code == 0
        assert_same(tmp_path / "one" / name, tmp_path / "many" / name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_ranks_on_one_gpu_give_what_one_process_gives(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    exact = (*WORK, "engine.device=cuda", "engine.precision=float32", "engine.compile=false")
    for ranks in (1, 2):
        jobs = [
            [*exact, *ALGORITHMS[name], f"engine={engine}", f"folder={ranks}/{engine}/{name}"]
            for engine in ("reference", "cuda_graphs", "vmap")
            for name in ("fedavgm", "scaffold", "personal", "private")
        ]
        code, said = finished(torchrun(ranks, "several.py", json.dumps(jobs), cwd=tmp_path))
        assert code == 0, said
    for one in (tmp_path / "1").glob("*/*"):
        assert_same(one, tmp_path / "2" / one.relative_to(tmp_path / "1"))


def children(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_rank_that_dies_ends_the_run_which_any_number_of_ranks_continues(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    words = (*WORK[:2], "algorithm=scaffold", "algorithm.lr=0.01", "algorithm.cohort_size=5", "checkpoint_seconds=0")
    process = run(2, *words, "rounds=100000", "evaluate_every=0", "folder=a", cwd=tmp_path)
    metrics = tmp_path / "a" / "metrics.jsonl"
    until(lambda: lines(metrics) > 4)
    os.kill(sorted(children(process))[1], signal.SIGKILL)
    code, said = finished(process)
    assert code != 0
    assert "manyeyes: another process of this training has ended" in said
    assert "the run is saved: continue it with resume=a" in said
    done = lines(metrics) + 3
    code, said = finished(run(3, "resume=a", f"rounds={done}", cwd=tmp_path))
    assert code == 0, said
    assert command("run", *words, f"rounds={done}", "evaluate_every=0", "engine=reference", "folder=b").code == 0
    for name, tensor in weights(tmp_path / "b").items():
        torch.testing.assert_close(weights(tmp_path / "a")[name], tensor, rtol=1e-4, atol=1e-6)


def test_ctrl_c_saves_the_run_after_the_same_round_on_every_rank(tmp_path: Path) -> None:
    process = run(2, *WORK[:2], "rounds=100000", "evaluate_every=0", "folder=a", cwd=tmp_path)
    until(lambda: lines(tmp_path / "a" / "metrics.jsonl") > 4)
    for child in children(process):
        os.kill(child, signal.SIGINT)
    _, said = finished(process)
    found = re.search(r"manyeyes: Stopped after round (\d+) of 100000; the run is saved\. Continue with", said)
    assert found, said
    assert said.count("Stopped after round") == 1
    assert lines(tmp_path / "a" / "metrics.jsonl") == int(found[1]) + 1


def test_a_wrong_setting_is_said_once(tmp_path: Path) -> None:
    code, said = finished(run(2, "algorithm.cohort_size=100000", cwd=tmp_path))
    assert code != 0
    assert said.count("manyeyes: a cohort of 100000 clients is asked of") == 1
