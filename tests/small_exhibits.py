"""Tables and figures of a made-up paper, small enough to be trained in a test."""

from __future__ import annotations

import json
from pathlib import Path

from manyeyes.papers import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.metric import AfterRounds, relative_after
from manyeyes.papers.statistics import Statistic

SYNTHETIC = (
    "data=synthetic",
    "data.users=40",
    "data.images_per_user=12",
    "model=linear",
    "algorithm.batch_size=6",
    "evaluate_every=1",
)
ENGINE = ("engine=reference", "engine.device=cpu", "engine.threads=1")


def small_run(name: str, *settings: str) -> RunRecipe:
    return RunRecipe(name, (*SYNTHETIC, "algorithm.cohort_size=4", "rounds=2", *settings), None)


BASELINE = RunRecipe("all", (*SYNTHETIC, "rounds=2", "algorithm=centralized"), None)
PRINTED = PrintedValue(50.0, "%", "Table 1, row one", std=1.0)
ONE_ROW = ExhibitRow(
    "one", (small_run("fedavg"),), {AfterRounds("accuracy", 1): PRINTED, relative_after(): None}, BASELINE
)
GRID_ROW = ExhibitRow(
    "grid",
    tuple(small_run(f"lr_{lr}", f"algorithm.lr={lr}") for lr in ("0.01", "1e30")),
    {AfterRounds("accuracy"): None},
)
MISSING_ROW = ExhibitRow(
    "gone",
    (RunRecipe("gone", ("data=flair", "data.path=data/flair", "rounds=1"), DatasetRecipe("data/flair", ("flair",))),),
)
MIXED_ROW = ExhibitRow(
    "mixed",
    (
        small_run("fedavg"),
        small_run("lr_1e30", "algorithm.lr=1e30"),
        small_run("none", "algorithm.epochs=0"),
    ),
    {AfterRounds("accuracy"): None},
)
DATASET_ROW = ExhibitRow(
    "flair",
    datasets=(DatasetRecipe("data/flair", ("flair", "--raw", "raw")),),
    expected={Statistic("users"): PrintedValue(51414, "users", "")},
)
TABLE = Exhibit("test", "table1", "A table", (ONE_ROW, GRID_ROW), "A claim.", "A note.", num_seeds=2)
FIGURE = Exhibit("test", "figure1", "A figure", (ONE_ROW,), "")
SMALL_EXHIBITS = (
    TABLE,
    FIGURE,
    Exhibit("test", "table2", "A table whose first dataset is missing", (MISSING_ROW, ONE_ROW), ""),
    Exhibit("test", "figure3", "A figure of parallel runs", (MIXED_ROW,), ""),
    Exhibit("test", "figure2", "A figure of a dataset", (DATASET_ROW,), ""),
)


def read_accuracy(folder: str, round: int = -1) -> float:
    lines = Path("runs", folder, "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[round])["accuracy"])
