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
from manyeyes.files import write_text
from manyeyes.metrics import mean_emd
from manyeyes.models import build
from manyeyes.parts import Epochs, ImportanceRatio
from manyeyes.report.comparison import compare, markdown, table
from manyeyes.report.figures import draw_curves
from manyeyes.run.folder import unused
from manyeyes.run.training import train

WORLD = World(users=600, size=32, coarse=10, fine=100, taste=1.0, tail=0.5)
ROUNDS = 280
EPOCHS = 8  # of the centralised bound
TARGET = 0.6  # of the centralised accuracy
COHORT, PHOTOS, BATCH = 20, 32, 16  # clients a round, photos a client (FedVC: exactly, else at most), photos a step


def algorithms() -> dict[str, Algorithm]:
    """What is compared; momentum multiplies a step by up to ten, so FedAvgM takes smaller ones."""
    draw = Epochs(1, BATCH, limit=PHOTOS)
    return {
        "FedAvg": replace(fedavg(cohort=COHORT, lr=0.1), draw=draw),
        "FedAvgM": replace(fedavgm(cohort=COHORT, lr=0.02), draw=draw),
        "FedVC + FedIR": replace(fedvc(COHORT, PHOTOS, BATCH, lr=0.1), reweigh=ImportanceRatio()),
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
        result = train(people, model, algorithm, rounds=ROUNDS, evaluate_every=14, folder=place, title=name)
        curves[name] = result.curve("accuracy")

    target = TARGET * bound
    rows = compare(curves, bound, target)
    console.print(table(rows, bound, target))
    write_text(folder / "table.md", markdown(rows, bound, target))
    draw_curves(folder / "curves.png", curves, bound, target, f"{len(people.users)} people, {len(people):,} photos")
    print(f"Report: {folder / 'curves.png'} and {folder / 'table.md'}, with every run beside them.")
    print(f"That took {time.monotonic() - began:.0f} s.")
    return 0
