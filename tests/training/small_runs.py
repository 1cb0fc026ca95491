"""Runs that take a second, and the contents of their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.training.result import Result
from manyeyes.training.run_folder import read_events
from manyeyes.training.train import train

CROPS = Preprocess(crop=6, pad=1, flip_horizontal=True)


def run(population: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    settings = {"rounds": 4, "evaluate_every": 2, "checkpoint_seconds": 0, "progress": False, **settings}
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
