"""Scaling: whole rounds with 1 and with 2 CPU ranks of torchrun, with one thread each.

    python benchmarks/ranks.py [--repeats 5] [--rounds 12] [--record]

Runs of 1 and of 2 ranks alternate, so that a slow machine affects both. The median of the rounds' seconds counts, as
the run reports them, without the first two rounds of a run. `even` has 20 clients of 50 images, `flair` 50 clients of
FLAIR's sizes. The model is the LeNet of Hsu et al. at 32 pixels. Writes benchmarks/records/ranks.json with --record.
Needs 2 idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from manyeyes.io.cpu_info import cpu_name
from manyeyes.training.run_folder import read_events

WORKLOADS = {
    "even": ("data.users=200", "data.images_per_user=50", "algorithm.cohort_size=20"),
    "flair": ("data.users=2000", "algorithm.cohort_size=50", "algorithm.epochs=2", "algorithm.max_examples=512"),
}
SHARED = ("model=lenet", "algorithm.batch_size=16", "engine=reference", "engine.threads=1", "evaluate_every=0")
WARMUP_ROUNDS = 2


def round_seconds(workload: str, num_ranks: int, rounds: int) -> list[float]:
    """Return the seconds of every round after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        overrides = [
            *SHARED,
            *WORKLOADS[workload],
            f"rounds={rounds + WARMUP_ROUNDS}",
            f"folder={folder}/run",
            "seed=0",
        ]
        done = subprocess.run(
            [*torchrun, "-m", "manyeyes", "run", *overrides],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        return [
            float(event["seconds"]) for event in read_events(Path(folder, "run", "metrics.jsonl"))[1 + WARMUP_ROUNDS :]
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print("| workload | 1 rank, s per round | 2 ranks | speedup |\n|---|---:|---:|---:|")
    for workload in WORKLOADS:
        seconds = {1: list[float](), 2: list[float]()}
        for _ in range(args.repeats):
            for num_ranks, times in seconds.items():
                times += round_seconds(workload, num_ranks, args.rounds)
        single, double = (statistics.median(seconds[num_ranks]) for num_ranks in (1, 2))
        results[workload] = {"one": single, "two": double, "speedup": round(single / double, 3)}
        print(f"| {workload} | {single:.3f} | {double:.3f} | {single / double:.2f} |", flush=True)
    if args.record:
        metadata = {"torch": torch.__version__, "processor": cpu_name(), "cores": os.cpu_count()}
        metadata |= {"command": "python benchmarks/ranks.py --record", "repeats": args.repeats, "rounds": args.rounds}
        path = Path(__file__).parent / "records" / "ranks.json"
        path.write_text(json.dumps(metadata | {"work": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
