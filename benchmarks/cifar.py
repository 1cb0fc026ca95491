"""Real CIFAR-10 with the users of Hsu et al. 2020: what accuracy FedAvg, FedAvgM and centralised training reach.

    python benchmarks/cifar.py RAW SPLITS [--alphas 100,0.5,0.1] [--rounds 5000] [--processes 2] [--out runs/cifar]

RAW holds the images (an archive of theirs or the folder that was in it), SPLITS the released users. Every run is kept
in its folder and is not repeated if it is there. Writes a table and benchmarks/records/cifar.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import manyeyes as me
from manyeyes.data.augment import Augment
from manyeyes.data.cifar_files import find, read
from manyeyes.data.partition import released
from manyeyes.metrics import mean_emd
from manyeyes.parts import Schedule
from manyeyes.population import Population, SingleLabels
from manyeyes.run.events import read as read_events
from manyeyes.run.folder import environment
from manyeyes.run.training import train

AUGMENT = Augment(pad=4, crop=32, flip_horizontal=True)
EPOCHS = 100  # of centralised training
DECAY = 4e-4
ALGORITHMS = {
    "FedAvg": me.fedavg(cohort=10, batch=64, lr=0.03, weight_decay=DECAY),
    "FedAvgM": me.fedavgm(cohort=10, batch=64, lr=0.01, weight_decay=DECAY),
    "centralised": me.centralised(
        batch=64, lr=0.02, momentum=0.9, weight_decay=DECAY, schedule=Schedule("cosine", rounds=EPOCHS, final=0.01)
    ),
}


@dataclass(frozen=True)
class Run:
    name: str
    alpha: float
    rounds: int
    raw: Path
    splits: Path
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / (self.name if self.name == "centralised" else f"{self.name}_{self.alpha:g}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("raw", type=Path)
    words.add_argument("splits", type=Path)
    words.add_argument("--alphas", default="100,0.5,0.1")
    words.add_argument("--algorithms", default=",".join(ALGORITHMS))
    words.add_argument("--rounds", type=int, default=5000)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/cifar"))
    words.add_argument("--record", type=Path, default=Path(__file__).parent / "records" / "cifar.json")
    given = words.parse_args()
    runs = []
    for name in given.algorithms.split(","):
        for alpha in [100.0] if name == "centralised" else map(float, given.alphas.split(",")):
            rounds = EPOCHS if name == "centralised" else given.rounds
            runs.append(Run(name, alpha, rounds, given.raw, given.splits, given.out))
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(play, runs))
    for row in rows:
        curve = "  ".join(f"{at}: {100 * value:.1f}" for at, value in row["accuracy"].items())
        print(f"{row['algorithm']:12} alpha {row['alpha']:<6} EMD {row['emd']:.2f}  {row['seconds']:.0f} s  {curve}")
    given.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


def play(run: Run) -> dict[str, object]:
    """Train, unless that is done, and say how it went."""
    images, labels, count = read(find(run.raw, 10))
    ids, names = labels["class"].ids, labels["class"].classes
    people = Population.of(
        images[:count], SingleLabels(ids[:count], names), released(run.splits, ids[:count], "cifar10", run.alpha)
    )
    test = Population.of(images[count:], SingleLabels(ids[count:], names), np.zeros(len(ids) - count, np.int64))
    if not (run.folder / "model.safetensors").exists():
        began = time.monotonic()
        train(
            people,
            "lenet",
            ALGORITHMS[run.name],
            test=test,
            augment=AUGMENT,
            rounds=run.rounds,
            evaluate_every=max(1, run.rounds // 10),
            precision="bf16" if torch.cuda.is_available() else "auto",
            folder=run.folder,
            progress=False,
        )
        print(f"{run.folder.name}: {time.monotonic() - began:.0f} s", flush=True)
    events = read_events(run.folder / "metrics.jsonl")
    return {
        "algorithm": run.name,
        "alpha": run.alpha if run.name != "centralised" else "-",
        "emd": mean_emd(people.histograms()) if run.name != "centralised" else 0.0,
        "rounds": run.rounds,
        "seconds": sum(event.get("seconds", 0.0) for event in events),
        "accuracy": {event["round"]: event["accuracy"] for event in events if "accuracy" in event},
    }


if __name__ == "__main__":
    main()
