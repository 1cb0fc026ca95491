"""Accuracy of the algorithms on synthetic images, over seeds, in one table.

    python benchmarks/algorithms.py [--seeds 3] [--processes 2] [--out runs/algorithms]

Three populations: users with the same class distribution (alike), users with different ones (skew), and users who also
have very different numbers of images (imbalance, as in FLAIR). A run whose folder exists is not repeated.
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
POPULATIONS = {  # and the number of rounds
    "alike": (ALIKE, 200),
    "skew": (replace(ALIKE, alpha=0.3), 400),
    "imbalance": (replace(ALIKE, users=600, images_per_user=0, alpha=1.0), 300),
}
EPOCHS = 20  # of centralized training, with a cosine schedule
PLAIN: dict[str, Any] = {"cohort_size": 10, "batch_size": 16, "lr": 0.1}
MOMENTUM: dict[str, Any] = PLAIN | {"lr": 0.02}  # momentum of 0.9 makes a step up to ten times as large
ALGORITHMS = {
    "centralized": me.centralized(lr=0.02, weight_decay=1e-3, schedule=Schedule("cosine", rounds=EPOCHS, final=0.01)),
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
    "alike": ("centralized", "FedAvg", "FedAvgM"),
    "skew": ("centralized", "FedAvg", "FedAvg, half the rate", "FedAvgM", "FedAvgM, half the rate", "FedIR"),
    "imbalance": ("centralized", "FedAvg", "FedAvgM", "FedVC", "FedVC + FedAvgM", "FedVC + FedIR"),
}
NUM_LAST = 15  # evaluations at the end of a curve that accuracy and fluctuation are computed from


@dataclass(frozen=True)
class TableRun:
    """One run of the table."""

    population: str
    algorithm: str
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / f"{self.population}_{self.algorithm.replace(' ', '').lower()}_{self.seed}"


def train(run: TableRun) -> Curve:
    """Return the curve of a run: train it, or read it from its folder."""
    torch.set_num_threads(1)
    if not (run.folder / "model.safetensors").exists():
        images, rounds = POPULATIONS[run.population]
        population = me.make_synthetic(replace(images, seed=run.seed), processes=1)
        try:
            me.train(
                population,
                me.build_model("lenet", len(population.classes), width=16, seed=run.seed),
                ALGORITHMS[run.algorithm],
                seed=run.seed,
                rounds=EPOCHS if run.algorithm == "centralized" else rounds,
                evaluate_every=4,
                folder=run.folder,
                resume=(run.folder / "checkpoint.safetensors").exists(),
            )
        except DivergenceError as error:
            print(error)  # the curve up to there counts
    return curve(read_events(run.folder / "metrics.jsonl"), "accuracy")


def summarize(curves: list[Curve], num_last: int) -> dict[str, list[float]]:
    """Return for each seed the mean and standard deviation of the last evaluations, and the batches."""
    ends = [c.values_E[-num_last:] for c in curves]
    return {
        "accuracy": [float(e.mean()) for e in ends],
        "fluctuation": [float(e.std()) for e in ends],
        "batches": [int(c.cumulative_batches_R[-1]) for c in curves],
    }


def table(results: dict[str, dict[str, dict[str, list[float]]]], skew: dict[str, float], seeds: int) -> str:
    lines = [f"Mean ± standard deviation over {seeds} seeds, of the mean of a curve's last {NUM_LAST} evaluations.", ""]
    for name, rows in results.items():
        bound = np.mean(rows["centralized"]["accuracy"])
        lines += [f"**{name}**, {POPULATIONS[name][1]} rounds (mean EMD {skew[name]:.2f})", ""]
        lines += [
            "| | accuracy % | relative | fluctuation % | batches of the largest client |",
            "|---|---:|---:|---:|---:|",
        ]
        for algorithm, row in rows.items():
            accuracy, fluctuation, batches = (np.array(row[key]) for key in ("accuracy", "fluctuation", "batches"))
            std = accuracy.std(ddof=1) if len(accuracy) > 1 else 0.0
            cells = f"{100 * accuracy.mean():.1f} ± {100 * std:.1f} | {accuracy.mean() / bound:.2f}"
            lines.append(f"| {algorithm} | {cells} | {100 * fluctuation.mean():.1f} | {batches.mean():,.0f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"))
    args = parser.parse_args()
    runs = [TableRun(p, a, s, args.out) for s in range(args.seeds) for p in POPULATIONS for a in COMPARED[p]]
    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        curves = dict(zip(runs, pool.map(train, runs), strict=True))
    results = {
        population: {
            algorithm: summarize(
                [curves[run] for run in runs if (run.population, run.algorithm) == (population, algorithm)],
                1 if algorithm == "centralized" else NUM_LAST,
            )
            for algorithm in COMPARED[population]
        }
        for population in POPULATIONS
    }
    skew = {
        name: mean_emd(me.make_synthetic(images).split("train").histograms())
        for name, (images, _) in POPULATIONS.items()
    }
    (args.out / "table.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, skew, args.seeds))


if __name__ == "__main__":
    main()
