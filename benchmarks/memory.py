"""What it saves that a process keeps the memory it frees: seconds of a round and of an evaluation on a CPU.

    python benchmarks/memory.py [--record FILE]

The reference engine with PyTorch's own threads; 4 clients of 50 images of 32 px, batch 25; 1,000 images are evaluated.
Each way in a process of its own, three of each by turns, the fastest of them and of four repetitions.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.engines.malloc import retained_memory
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.environment import environment

MODELS = ("lenet", "resnet18", "mobilenet_v2")
WAYS = ("kept", "given back")
CPU = torch.device("cpu")


def least(work: Callable[[], object]) -> float:
    found = []
    for _ in range(4):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return round(min(found), 4)


def measured(name: str) -> dict[str, float]:
    """In this process, as it is."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (1000, 32, 32, 3), np.uint8), rng.integers(0, 10, 1000)
    people = Population.from_arrays(images, SingleLabels(labels, tuple("abcdefghij")), np.repeat(np.arange(20), 50))
    torch.manual_seed(0)
    model, algorithm = FlatModel(build_model(name, 10)), fedavg(cohort_size=4, batch_size=25)
    engine, judge = (
        ReferenceEngine(EngineSetup(model, people, Preprocess(), CPU)),
        LocalEvaluator(model, people, Preprocess(), CPU),
    )
    state = init_state(algorithm, model.read(), model.num_trainable)
    return {
        "round": least(lambda: run_round(algorithm, state, people, engine, {}, 0)),
        "evaluation": least(lambda: judge.evaluate_global(state.weights)),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def in_a_process(way: str, name: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", way, name], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with retained_memory(CPU) if given.one[0] == "kept" else nullcontext():
            print(json.dumps(measured(given.one[1])))
        return
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name in MODELS:
        times = [{way: in_a_process(way, name) for way in WAYS} for _ in range(3)]
        rows[name] = {way: {what: min(one[way][what] for one in times) for what in times[0][way]} for way in WAYS}
        print(f"{name:13}", rows[name], flush=True)
    if given.record is not None:
        given.record.write_text(json.dumps(environment() | {"seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
