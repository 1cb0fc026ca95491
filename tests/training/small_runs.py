"""Runs that take a second, runs that are killed, and the contents of their folders."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.training import checkpoint
from manyeyes.training.result import Result
from manyeyes.training.run_folder import read_events
from manyeyes.training.train import train

CROPS = Preprocess(crop=6, pad=1, flip_horizontal=True)


def run(population: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    defaults = {"rounds": 4, "evaluate_every": 2, "checkpoint_seconds": 0, "progress": False, "engine": "reference"}
    settings = {**defaults, **settings}
    return train(population, settings.pop("model", "linear"), algorithm, folder=folder, **settings)


def events_without_times(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run without the measured seconds."""
    return [
        {name: value for name, value in event.items() if name != "seconds"}
        for event in read_events(folder / "metrics.jsonl")
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def equal_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def kill_twice(
    folder: Path,
    args: tuple[str, ...],
    spawn: Callable[..., subprocess.Popen[str]],
    until: Callable[[Callable[[], bool]], None],
) -> int:
    """Start a run with `manyeyes run`, kill it and its continuation at random moments, and return the saved round."""
    metrics, rng, saved_round = folder / "metrics.jsonl", random.Random(" ".join(args)), 0
    start = (*args, "rounds=1000000", f"folder={folder.name}")
    for _ in range(2):
        process = spawn("-m", "manyeyes", "run", *start)
        num_lines = saved_round + rng.randint(2, 12)

        def has_trained(process: subprocess.Popen[str] = process, num_lines: int = num_lines) -> bool:
            assert process.poll() is None, process.communicate()[1]
            return metrics.exists() and metrics.read_bytes().count(b"\n") > num_lines

        until(has_trained)
        time.sleep(rng.uniform(0, 0.02))  # anywhere in a round, or while the checkpoint is written
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        saved_round = checkpoint.load(folder / "checkpoint.safetensors", torch.device("cpu")).state.round
        start = (f"resume={folder.name}",)
    return saved_round
