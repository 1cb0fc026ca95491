"""`manyeyes demo`: FedAvg, FedAvgM and FedVC with FedIR next to centralized training, on synthetic images."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn

from manyeyes.algorithms import centralized, fedavg, fedavgm, fedvc
from manyeyes.cli.parser import Parser
from manyeyes.components import EpochBatching, ImportanceReweighting, Schedule
from manyeyes.core.algorithm import Algorithm
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.io.files import write_text
from manyeyes.io.steps import shows_progress
from manyeyes.metrics import mean_emd
from manyeyes.models import build_model
from manyeyes.report.comparison import comparison_charts, comparison_table
from manyeyes.report.export import write_charts
from manyeyes.report.report import write
from manyeyes.training.progress import PlainLines
from manyeyes.training.result import curve
from manyeyes.training.run_files import METRICS_FILE
from manyeyes.training.run_folder import read_events, unused_path
from manyeyes.training.run_names import find_runs
from manyeyes.training.train import train

DATASET = SyntheticImages(users=600, size=32, coarse=10, fine=100, alpha=1.0, class_imbalance=0.5)
ROUNDS, EVALUATE_EVERY = 280, 14
CENTRALIZED, CENTRALIZED_EPOCHS = "Centralized", 10
TARGET_FRACTION = 0.6  # of the centralized accuracy
COHORT_SIZE, BATCH_SIZE = 20, 16
EXAMPLES = 32  # of a client per round: in FedVC exactly, otherwise at most


def algorithms() -> dict[str, tuple[Algorithm, int]]:
    """Return the algorithms and their rounds, the longest run first.

    Momentum multiplies a step by up to ten, so FedAvgM has a smaller learning rate.
    """
    batching = EpochBatching(1, BATCH_SIZE, max_examples=EXAMPLES)
    schedule = Schedule("cosine", rounds=CENTRALIZED_EPOCHS, final=0.01)
    virtual_clients = fedvc(COHORT_SIZE, EXAMPLES, BATCH_SIZE, lr=0.1)
    return {
        "FedVC + FedIR": (replace(virtual_clients, example_weighting=ImportanceReweighting()), ROUNDS),
        "FedAvg": (replace(fedavg(cohort_size=COHORT_SIZE, lr=0.1), batching=batching), ROUNDS),
        "FedAvgM": (replace(fedavgm(cohort_size=COHORT_SIZE, lr=0.02), batching=batching), ROUNDS),
        CENTRALIZED: (centralized(lr=0.03, schedule=schedule), CENTRALIZED_EPOCHS),
    }


def main(argv: list[str]) -> int:
    description = "Compare four algorithms on synthetic images, in two minutes on a CPU; the runs are kept in runs/."
    Parser("manyeyes demo", description=description, example="manyeyes demo").parse_args(argv)
    start = time.monotonic()
    root = unused_path(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_demo"))
    population = make_synthetic(DATASET)
    size = f"{len(population.user_ids)} users, {len(population):,} images"
    emd = mean_emd(population.split("train").histograms())
    print(f"{size}; the class mix of a user differs by {emd:.2f} of 2 (EMD).")
    folders = {name: root / name.lower().replace(" ", "") for name in algorithms()}
    _train_all(folders)
    _report(root, folders, size)
    print(f"That took {time.monotonic() - start:.0f} s.")
    return 0


def _train_all(folders: dict[str, Path]) -> None:
    """Train every algorithm in its own process of one thread: on a CPU, faster than one process of several threads."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[status]}", TimeElapsedColumn())
    console = Console(file=sys.stderr)
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    has_lines = shows_progress() and not console.is_terminal
    lines = {task: PlainLines(name) for task, name in enumerate(folders)} if has_lines else {}
    with progress, ProcessPoolExecutor(min(2, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(_train, name, folder) for name, folder in folders.items()]
        tasks = {name: progress.add_task(name, total=algorithms()[name][1], status="") for name in folders}
        while wait(runs, timeout=0.5).not_done:
            for name, task in tasks.items():
                _update_progress(progress, task, folders[name] / METRICS_FILE, lines.get(task))
    for run in runs:
        run.result()


def _update_progress(progress: Progress, task: TaskID, metrics_file: Path, line: PlainLines | None) -> None:
    events = read_events(metrics_file) if metrics_file.exists() else []
    if len(events) > 1:
        accuracy = [event["accuracy"] for event in events if "accuracy" in event][-1]
        speed = events[-1]["num_images"] / events[-1]["seconds"]
        status = f"accuracy {accuracy:.3f}  {speed:,.0f} images/s"
        progress.update(task, completed=events[-1]["round"], status=status)
        if line is not None:
            line.update(events[-1]["round"], int(progress.tasks[task].total or 0), status)


def _train(name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    population = make_synthetic(DATASET, processes=1)
    algorithm, rounds = algorithms()[name]
    metadata: dict[str, dict[str, object]] = {"algorithm": {"name": name}, "model": {"name": "lenet", "width": 16}}
    train(
        population,
        build_model("lenet", len(population.classes), size=DATASET.size, width=16),
        algorithm,
        rounds=rounds,
        evaluate_every=1 if name == CENTRALIZED else EVALUATE_EVERY,
        folder=folder,
        progress=False,
        metadata=metadata | {"data": {"name": "synthetic", **asdict(DATASET)}},
    )


def _report(root: Path, folders: dict[str, Path], title: str) -> None:
    curves = {name: curve(read_events(folder / METRICS_FILE), "accuracy") for name, folder in folders.items()}
    baseline = float(curves.pop(CENTRALIZED).values_E[-1])
    curves = dict(sorted(curves.items()))  # FedAvg first
    table = comparison_table(curves, baseline, TARGET_FRACTION * baseline)
    print(table.terminal())
    write_text(root / "table.md", table.markdown())
    write_charts(comparison_charts(curves, baseline, TARGET_FRACTION * baseline, title), root)
    runs = find_runs([f"{name}={folder}" for name, folder in folders.items()])
    write(runs, root / "report.html", "Four ways to train")
    print(f"Report: {root / 'report.html'}\nIn the same folder: {root / 'table.md'}, the charts and every run.")
