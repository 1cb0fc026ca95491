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
from typing import Any

import numpy as np
import torch

import manyeyes as me
from manyeyes.components import ImportanceReweighting, Schedule, ServerSGD
from manyeyes.core.state import DivergenceError
from manyeyes.metrics import Curve, mean_emd
from manyeyes.training.result import curve
from manyeyes.training.run_folder import read_events

ALIKE = me.SyntheticImages(
    users=200, size=32, coarse=10, fine=100, images_per_user=40, alpha=1000.0, class_imbalance=0.0
)
WORLDS = {  # and how many rounds each is given
    "alike": (ALIKE, 200),
    "skew": (replace(ALIKE, alpha=0.3), 400),
    "imbalance": (replace(ALIKE, users=600, images_per_user=0, alpha=1.0), 300),
}
EPOCHS = 20  # of centralised training, the learning rate falling along a cosine
PLAIN: dict[str, Any] = {"cohort": 10, "batch": 16, "lr": 0.1}
MOMENTUM: dict[str, Any] = {"cohort": 10, "batch": 16, "lr": 0.02}  # momentum multiplies a step by up to ten
ALGORITHMS = {
    "centralised": me.centralized(lr=0.02, weight_decay=1e-3, schedule=Schedule("cosine", rounds=EPOCHS, final=0.01)),
    "FedAvg": me.fedavg(**PLAIN),
    "FedAvgM": me.fedavgm(**MOMENTUM),
    "FedAvg, half the rate": me.fedavg(**(PLAIN | {"lr": 0.05})),
    "FedAvgM, half the rate": me.fedavgm(**(MOMENTUM | {"lr": 0.01})),
    "FedIR": me.fedir(**PLAIN),
    "FedVC": me.fedvc(virtual_client_size=32, **PLAIN),
    "FedVC + FedAvgM": replace(me.fedvc(virtual_client_size=32, **MOMENTUM), server_optimizer=ServerSGD(1.0, 0.9)),
    "FedVC + FedIR": replace(me.fedvc(virtual_client_size=32, **PLAIN), example_weighting=ImportanceReweighting()),
}
COMPARED = {
    "alike": ("centralised", "FedAvg", "FedAvgM"),
    "skew": ("centralised", "FedAvg", "FedAvg, half the rate", "FedAvgM", "FedAvgM, half the rate", "FedIR"),
    "imbalance": ("centralised", "FedAvg", "FedAvgM", "FedVC", "FedVC + FedAvgM", "FedVC + FedIR"),
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
        world, rounds = WORLDS[job.world]
        people = me.make_synthetic(replace(world, seed=job.seed), processes=1)
        try:
            me.train(
                people,
                me.build_model("lenet", len(people.classes), width=16, seed=job.seed),
                ALGORITHMS[job.algorithm],
                seed=job.seed,
                rounds=EPOCHS if job.algorithm == "centralised" else rounds,
                evaluate_every=4,
                folder=job.folder,
                resume=(job.folder / "checkpoint.safetensors").exists(),
            )
        except DivergenceError as error:
            print(error)  # its curve ends there, and counts as it is
    return curve(read_events(job.folder / "metrics.jsonl"), "accuracy")


def summary(curves: list[Curve], last: int) -> dict[str, list[float]]:
    """For each seed: the level at the end, its standard deviation over the last evaluations, and the batches spent."""
    ends = [c.values_E[-last:] for c in curves]
    return {
        "accuracy": [float(e.mean()) for e in ends],
        "unrest": [float(e.std()) for e in ends],
        "batches": [int(c.cumulative_batches_R[-1]) for c in curves],
    }


def table(results: dict[str, dict[str, dict[str, list[float]]]], skew: dict[str, float], seeds: int) -> str:
    lines = [f"Mean ± standard deviation over {seeds} seeds, of the mean of a curve's last {TAIL} evaluations.", ""]
    for world, rows in results.items():
        bound = np.mean(rows["centralised"]["accuracy"])
        lines += [f"**{world}**, {WORLDS[world][1]} rounds (mean EMD {skew[world]:.2f})", ""]
        lines += ["| | accuracy % | relative | unrest % | batches of the largest client |", "|---|---:|---:|---:|---:|"]
        for name, row in rows.items():
            level, unrest, batches = (np.array(row[key]) for key in ("accuracy", "unrest", "batches"))
            spread = level.std(ddof=1) if len(level) > 1 else 0.0
            cells = f"{100 * level.mean():.1f} ± {100 * spread:.1f} | {level.mean() / bound:.2f}"
            lines.append(f"| {name} | {cells} | {100 * unrest.mean():.1f} | {batches.mean():,.0f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/algorithms"))
    given = words.parse_args()
    jobs = [Job(w, a, s, given.out) for s in range(given.seeds) for w in WORLDS for a in COMPARED[w]]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        curves = dict(zip(jobs, pool.map(play, jobs), strict=True))
    results = {
        world: {
            name: summary(
                [curves[j] for j in jobs if (j.world, j.algorithm) == (world, name)],
                1 if name == "centralised" else TAIL,
            )
            for name in COMPARED[world]
        }
        for world in WORLDS
    }
    skew = {w: mean_emd(me.make_synthetic(WORLDS[w][0]).split("train").histograms()) for w in WORLDS}
    (given.out / "table.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, skew, given.seeds))


if __name__ == "__main__":
    main()
