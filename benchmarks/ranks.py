"""Scaling: whole rounds with 1 and with 2 CPU ranks of torchrun, one thread each.

    python benchmarks/ranks.py [--repeats 5] [--rounds 12] [--record]

Runs of 1 and of 2 ranks take turns, so that a machine that slows down slows both; of each round's seconds, as the run
itself writes them, the first two of a run are left out and the median of all others counts. `even`: 20 clients of 50
photos; `flair`: 50 clients of as many as FLAIR's users hold. A LeNet of Hsu et al., 32 pixels. Writes
benchmarks/records/ranks.json with --record. Needs 2 free cores.
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

WORK = {
    "even": ("data.users=200", "data.images_per_user=50", "algorithm.cohort=20"),
    "flair": ("data.users=2000", "algorithm.cohort=50", "algorithm.epochs=2", "algorithm.limit=512"),
}
ALL = ("model=lenet", "algorithm.batch=16", "engine=reference", "engine.threads=1", "evaluate_every=0")
WARM = 2


def seconds(work: str, ranks: int, rounds: int) -> list[float]:
    """Of every round but the first two."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [*ALL, *WORK[work], f"rounds={rounds + WARM}", f"folder={folder}/run", "seed=0"]
        done = subprocess.run(
            [*torchrun, "-m", "manyeyes", "run", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        return [float(event["seconds"]) for event in read_events(Path(folder, "run", "metrics.jsonl"))[1 + WARM :]]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--rounds", type=int, default=12)
    words.add_argument("--record", action="store_true")
    given = words.parse_args()
    found: dict[str, dict[str, float]] = {}
    print("| work | 1 rank, s a round | 2 ranks | times as fast |\n|---|---:|---:|---:|")
    for work in WORK:
        all_of = {1: list[float](), 2: list[float]()}
        for _ in range(given.repeats):
            for ranks, some in all_of.items():
                some += seconds(work, ranks, given.rounds)
        one, two = (statistics.median(all_of[ranks]) for ranks in (1, 2))
        found[work] = {"one": one, "two": two, "speedup": round(one / two, 3)}
        print(f"| {work} | {one:.3f} | {two:.3f} | {one / two:.2f} |", flush=True)
    if given.record:
        about = {"torch": torch.__version__, "processor": cpu_name(), "cores": os.cpu_count()}
        about |= {"command": "python benchmarks/ranks.py --record", "repeats": given.repeats, "rounds": given.rounds}
        path = Path(__file__).parent / "records" / "ranks.json"
        path.write_text(json.dumps(about | {"work": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
