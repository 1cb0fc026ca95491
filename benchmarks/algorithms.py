"""Do the algorithms behave as their papers say? Accuracy on the world, over seeds, in one table.

    python benchmarks/algorithms.py [--seeds 3] [--processes 2] [--out runs/algorithms]

Three populations: people whose tastes are alike, people whose tastes differ (skew), and people who also hold very
different numbers of photos (imbalance, as FLAIR). Every run is kept in its folder and is not repeated if it is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import manyeyes as me
from manyeyes.metrics import Curve, mean_emd
from manyeyes.parts import ImportanceRatio, ServerSGD
from manyeyes.run.events import read
from manyeyes.run.result import curve

LR, ROUNDS, EPOCHS = 0.1, 150, 15
ALIKE = me.World(users=250, size=32, coarse=10, fine=100, photos=50, taste=1000.0, tail=0.0)
WORLDS = {
    "alike": ALIKE,
    "skew": replace(ALIKE, taste=0.1),
    "imbalance": replace(ALIKE, users=1500, photos=0, taste=0.3),
}
EQUAL = {"cohort": 10, "batch": 32, "lr": LR}
ALGORITHMS = {
    "centralised": me.centralised(batch=64, lr=0.05),
    "FedAvg": me.fedavg(**EQUAL),
    "FedAvgM": me.fedavgm(**EQUAL),
    "FedIR": me.fedir(**EQUAL),
    "FedVC": me.fedvc(examples=64, **EQUAL),
    "FedVC + FedAvgM": replace(me.fedvc(examples=64, **EQUAL), server=ServerSGD(1.0, 0.9)),
    "FedVC + FedIR": replace(me.fedvc(examples=64, **EQUAL), reweigh=ImportanceRatio()),
    "SCAFFOLD": me.scaffold(**EQUAL),
}
TAIL = 15  # evaluations at the end of a curve that its level and its unrest are taken from


@dataclass(frozen=True)
class Job:
    """One run of the table."""

    world: str
    algorithm: str
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / f"{self.world}_{self.algorithm.replace(' ', '').lower()}_{self.seed}"


def play(job: Job) -> Curve:
    """The curve of one run: trained now, or read from its folder."""
    torch.set_num_threads(1)
    done = job.folder / "model.safetensors"
    if not done.exists():
        central = job.algorithm == "centralised"
        people = me.make_world(replace(WORLDS[job.world], seed=job.seed), processes=1)
        me.train(
            people,
            me.build_model("lenet", len(people.classes), width=16, seed=job.seed),
            ALGORITHMS[job.algorithm],
            seed=job.seed,
            rounds=EPOCHS if central else ROUNDS,
            evaluate_every=1 if central else 2,
            folder=job.folder,
            resume=(job.folder / "checkpoint.safetensors").exists(),
        )
    return curve(read(job.folder / "metrics.jsonl"), "accuracy")


def summary(curves: list[Curve], central: bool) -> dict[str, list[float]]:
    """For each seed: the level at the end, its standard deviation over the last evaluations, and the batches spent."""
    tail = 1 if central else TAIL
    ends = [c.values_E[-tail:] for c in curves]
    return {
        "accuracy": [float(e.mean()) for e in ends],
        "unrest": [float(e.std()) for e in ends],
        "batches": [int(c.spent_R[-1]) for c in curves],
    }


def table(results: dict[str, dict[str, dict[str, list[float]]]], skew: dict[str, float], seeds: int) -> str:
    lines = [f"Mean ± standard deviation over {seeds} seeds; {ROUNDS} rounds, the last {TAIL} evaluations.", ""]
    for world, rows in results.items():
        bound = np.mean(rows["centralised"]["accuracy"])
        lines += [f"**{world}** (mean EMD {skew[world]:.2f})", ""]
        lines += ["| | accuracy % | relative | unrest % | batches of the largest client |", "|---|---:|---:|---:|---:|"]
        for name, row in rows.items():
            level, unrest, batches = (np.array(row[key]) for key in ("accuracy", "unrest", "batches"))
            cells = f"{100 * level.mean():.1f} ± {100 * level.std():.1f} | {level.mean() / bound:.2f}"
            lines.append(f"| {name} | {cells} | {100 * unrest.mean():.1f} | {batches.mean():,.0f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/algorithms"))
    given = words.parse_args()
    jobs = [Job(w, a, s, given.out) for s in range(given.seeds) for w in WORLDS for a in ALGORITHMS]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        curves = dict(zip(jobs, pool.map(play, jobs), strict=True))
    results = {
        world: {
            name: summary([curves[j] for j in jobs if (j.world, j.algorithm) == (world, name)], name == "centralised")
            for name in ALGORITHMS
        }
        for world in WORLDS
    }
    skew = {w: mean_emd(me.make_world(WORLDS[w]).split("train").histograms()) for w in WORLDS}
    (given.out / "table.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, skew, given.seeds))


if __name__ == "__main__":
    main()
