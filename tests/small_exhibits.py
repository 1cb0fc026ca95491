"""Tables and figures of a paper that nobody wrote, small enough to be run in a test."""

from __future__ import annotations

import json
from pathlib import Path

from manyeyes.papers import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.metric import AfterRounds, Final, Relative
from manyeyes.papers.statistics import Count

WORLD = (
    "data=synthetic",
    "data.users=40",
    "data.images_per_user=12",
    "model=linear",
    "algorithm.batch=6",
    "evaluate_every=1",
)
HERE = ("engine=reference", "engine.device=cpu", "engine.threads=1")


def small(name: str, *more: str) -> RunRecipe:
    return RunRecipe(name, (*WORLD, "algorithm.cohort=4", "rounds=2", *more), None)


BOUND = small("all", "algorithm=centralized")
PRINTED = PrintedValue(50.0, "%", "Table 1, row one", spread=1.0)
ONE = ExhibitRow("one", (small("fedavg"),), {AfterRounds("accuracy", 1): PRINTED, Relative(): None}, BOUND)
GRID = ExhibitRow(
    "grid", tuple(small(f"lr_{lr}", f"algorithm.lr={lr}") for lr in ("0.01", "1e30")), {Final("accuracy"): None}
)
TABLE = Exhibit("test", "table1", "A table", (ONE, GRID), "All is well.", "As it is.", seeds=2)
FIGURE = Exhibit("test", "figure1", "A figure", (ONE,), "")
MISSING = ExhibitRow(
    "gone",
    (RunRecipe("gone", ("data=flair", "data.path=data/flair", "rounds=1"), DatasetRecipe("data/flair", ("flair",))),),
)
BROKEN = Exhibit("test", "table2", "Half of a table", (MISSING, ONE), "")
MIXED = ExhibitRow(
    "mixed",
    (small("fedavg"), small("lr_1e30", "algorithm.lr=1e30"), small("none", "algorithm.epochs=0")),
    {Final("accuracy"): None},
)
BESIDE = Exhibit("test", "figure3", "Side by side", (MIXED,), "")
DATA = Exhibit(
    "test",
    "figure2",
    "Data",
    (
        ExhibitRow(
            "flair",
            stores=(DatasetRecipe("data/flair", ("flair", "--raw", "raw")),),
            expected={Count("users"): PrintedValue(51414, "users", "")},
        ),
    ),
    "",
)
PAPERS = (TABLE, FIGURE, BROKEN, BESIDE, DATA)


def accuracy(folder: str, round: int = -1) -> float:
    lines = Path("runs", folder, "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[round])["accuracy"])
