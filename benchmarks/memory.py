"""What retaining freed memory saves: seconds of a round and of an evaluation on a CPU.

    python benchmarks/memory.py [--record FILE]

The reference engine with PyTorch's default number of threads; 4 clients of 50 images of 32 px, batch size 25; 1,000
images are evaluated. Each mode runs in three processes, which alternate; the fastest of four repetitions counts.
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
from manyeyes.engines.base import EngineSetup, retained_memory
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.description import environment

MODELS = ("lenet", "resnet18", "mobilenet_v2")
MODES = ("retained", "returned")
CPU = torch.device("cpu")


def fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(min(times), 4)


def measure(name: str) -> dict[str, float]:
    """Measure a model in this process."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (1000, 32, 32, 3), np.uint8), rng.integers(0, 10, 1000)
    population = Population.from_arrays(images, SingleLabels(labels, tuple("abcdefghij")), np.repeat(np.arange(20), 50))
    torch.manual_seed(0)
    model, algorithm = FlatModel(build_model(name, 10)), fedavg(cohort_size=4, batch_size=25)
    engine = ReferenceEngine(EngineSetup(model, population, Preprocess(), CPU))
    evaluator = LocalEvaluator(model, population, Preprocess(), CPU)
    state = init_state(algorithm, model.read(), model.num_trainable)
    return {
        "round": fastest(lambda: run_round(algorithm, state, population, engine, {}, 0)),
        "evaluation": fastest(lambda: evaluator.evaluate_global(state.weights)),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measure_in_process(mode: str, name: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", mode, name], capture_output=True, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with retained_memory(CPU) if args.one[0] == "retained" else nullcontext():
            print(json.dumps(measure(args.one[1])))
        return
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name in MODELS:
        repeats = [{mode: measure_in_process(mode, name) for mode in MODES} for _ in range(3)]
        rows[name] = {
            mode: {quantity: min(row[mode][quantity] for row in repeats) for quantity in repeats[0][mode]}
            for mode in MODES
        }
        print(f"{name:13}", rows[name], flush=True)
    if args.record is not None:
        args.record.write_text(json.dumps(environment() | {"seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
