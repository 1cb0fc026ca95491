"""`manyeyes demo`: FedAvg, FedAvgM and FedVC with FedIR against the centralised bound, on a small world."""

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from manyeyes.algorithms import centralized, fedavg, fedavgm, fedvc
from manyeyes.components import EpochBatching, ImportanceReweighting, Schedule
from manyeyes.core.algorithm import Algorithm
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.io.files import write_text
from manyeyes.metrics import mean_emd
from manyeyes.models import build_model
from manyeyes.report.comparison import comparison_charts, comparison_table
from manyeyes.report.export import write_charts
from manyeyes.report.report import write
from manyeyes.training.result import curve
from manyeyes.training.run_folder import read_events, unused_path
from manyeyes.training.run_record import find_runs
from manyeyes.training.train import train

WORLD = SyntheticImages(users=600, size=32, coarse=10, fine=100, alpha=1.0, class_imbalance=0.5)
ROUNDS = 280
EPOCHS = 10  # of the centralised bound
TARGET = 0.6  # of the centralised accuracy
COHORT, PHOTOS, BATCH = 20, 32, 16  # clients a round, photos a client (FedVC: exactly, else at most), photos a step
BOUND = "centralised"


def algorithms() -> dict[str, tuple[Algorithm, int]]:
    """What is compared, and for how many rounds; momentum multiplies a step by up to ten, so FedAvgM's are smaller."""
    draw = EpochBatching(1, BATCH, max_examples=PHOTOS)
    vc = replace(fedvc(COHORT, PHOTOS, BATCH, lr=0.1), example_weighting=ImportanceReweighting())
    return {  # the longest first
        "FedVC + FedIR": (vc, ROUNDS),
        "FedAvg": (replace(fedavg(cohort_size=COHORT, lr=0.1), batching=draw), ROUNDS),
        "FedAvgM": (replace(fedavgm(cohort_size=COHORT, lr=0.02), batching=draw), ROUNDS),
        BOUND: (centralized(lr=0.03, schedule=Schedule("cosine", rounds=EPOCHS, final=0.01)), EPOCHS),
    }


def main(words: list[str]) -> int:
    """Train, print a table, draw a picture, and say where they are."""
    if words:
        raise ValueError(f"demo takes no arguments, and got {' '.join(words)}")
    began = time.monotonic()
    folder = unused_path(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_demo"))
    people = make_synthetic(WORLD)
    skew = mean_emd(people.split("train").histograms())
    print(f"{len(people.user_ids)} people took {len(people):,} photos; their tastes differ by {skew:.2f} of 2 (EMD).")

    places = {name: folder / name.lower().replace(" ", "") for name in algorithms()}
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        runs = {name: pool.submit(_play, name, place) for name, place in places.items()}
        _watch(runs, places)
    curves = {name: curve(read_events(place / "metrics.jsonl"), "accuracy") for name, place in places.items()}
    bound = float(curves.pop(BOUND).values_E[-1])
    compared = {name: curves[name] for name in ("FedAvg", "FedAvgM", "FedVC + FedIR")}

    target = TARGET * bound
    table = comparison_table(compared, bound, target)
    print(table.terminal())
    write_text(folder / "table.md", table.markdown())
    title = f"{len(people.user_ids)} users, {len(people):,} images"
    write_charts(comparison_charts(compared, bound, target, title), folder)
    write(
        find_runs([f"{name}={place}" for name, place in places.items()]), folder / "report.html", "Four ways to train"
    )
    print(f"Report: {folder / 'report.html'}")
    print(f"In the same folder: {folder / 'table.md'}, the charts and every run.")
    print(f"That took {time.monotonic() - began:.0f} s.")
    return 0


def _play(name: str, place: Path) -> None:
    """One run in a process of one thread: on a CPU, two of these do more than one of two threads."""
    torch.set_num_threads(1)
    people = make_synthetic(WORLD, processes=1)
    algorithm, rounds = algorithms()[name]
    model = build_model("lenet", len(people.classes), size=WORLD.size, width=16)
    every = 1 if name == BOUND else 14
    about = {"algorithm": {"name": name, "parts": repr(algorithm)}, "model": {"name": "lenet", "width": 16}}
    about |= {"data": {"name": "synthetic", **asdict(WORLD)}, "rounds": rounds, "seed": 0}
    train(people, model, algorithm, rounds=rounds, evaluate_every=every, folder=place, progress=False, metadata=about)


def _watch(runs: Mapping[str, Future[None]], places: Mapping[str, Path]) -> None:
    """A line for each run, from what it writes, until all are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        lines = {name: progress.add_task(name, total=algorithms()[name][1], facts="") for name in runs}
        while wait(runs.values(), timeout=0.5).not_done:
            for name, line in lines.items():
                events = (
                    read_events(places[name] / "metrics.jsonl") if (places[name] / "metrics.jsonl").exists() else []
                )
                seen = [event["accuracy"] for event in events if "accuracy" in event]
                if seen and len(events) > 1:
                    speed = events[-1]["images"] / events[-1]["seconds"]
                    facts = f"accuracy {seen[-1]:.3f}  {speed:,.0f} images/s"
                    progress.update(line, completed=events[-1]["round"], facts=facts)
        for name, line in lines.items():
            progress.update(line, completed=algorithms()[name][1])
    for run in runs.values():
        run.result()
