"""`manyeyes demo`: FedAvg, FedAvgM and FedVC with FedIR against the centralised bound, on a small world."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from manyeyes.algorithm import Algorithm
from manyeyes.algorithms import centralised, fedavg, fedavgm, fedvc
from manyeyes.data.world import World, make
from manyeyes.metrics import mean_emd
from manyeyes.models import build
from manyeyes.parts import ImportanceRatio
from manyeyes.report.comparison import compare, markdown, table
from manyeyes.report.figures import draw_curves
from manyeyes.run.files import write_text
from manyeyes.run.folder import unused
from manyeyes.run.training import train

WORLD = World(users=600, size=32, coarse=10, fine=100, taste=0.5, tail=0.5)
ROUNDS = 60
EPOCHS = 8  # of the centralised bound
TARGET = 0.8  # of the centralised accuracy
LR = 0.1


def algorithms() -> dict[str, Algorithm]:
    """What is compared; all with the same local learning rate."""
    return {
        "FedAvg": fedavg(cohort=20, batch=32, lr=LR),
        "FedAvgM": fedavgm(cohort=20, batch=32, lr=LR),
        "FedVC + FedIR": replace(fedvc(cohort=20, examples=64, batch=32, lr=LR), reweigh=ImportanceRatio()),
    }


def demo(words: list[str]) -> int:
    """Train, print a table, draw a picture, and say where they are."""
    if words:
        raise ValueError(f"demo takes no arguments, and got {' '.join(words)}")
    began, console = time.monotonic(), Console()
    folder = unused(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_demo"))
    people = make(WORLD)
    skew = mean_emd(people.split("train").histograms())
    console.print(
        f"{len(people.users)} people took {len(people):,} photos; their tastes differ by {skew:.2f} of 2 (EMD)."
    )

    model = build("lenet", len(people.classes), size=WORLD.size, width=16)
    bound = train(
        people,
        model,
        centralised(batch=64, lr=0.05),
        rounds=EPOCHS,
        evaluate_every=1,
        folder=folder / "centralised",
        title="centralised",
    ).final["accuracy"]
    curves = {}
    for name, algorithm in algorithms().items():
        place = folder / name.lower().replace(" ", "")
        result = train(people, model, algorithm, rounds=ROUNDS, evaluate_every=2, folder=place, title=name)
        curves[name] = result.curve("accuracy")

    target = TARGET * bound
    rows = compare(curves, bound, target)
    console.print(table(rows, bound, target))
    write_text(folder / "table.md", markdown(rows, bound, target))
    draw_curves(folder / "curves.png", curves, bound, target, f"{len(people.users)} people, {len(people):,} photos")
    console.print(f"The runs are in {folder}, the table in table.md and the curves in curves.png there.")
    console.print(f"That took {time.monotonic() - began:.0f} s.")
    return 0
