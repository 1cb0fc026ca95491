"""Tables and figures of a paper that nobody wrote, small enough to be run in a test."""

from __future__ import annotations

import json
from pathlib import Path

from manyeyes.papers import Item, Number, Row, Run, Store
from manyeyes.papers.measure import AfterRounds, Final, Relative
from manyeyes.papers.statistic import Count

WORLD = ("data=world", "data.users=40", "data.photos=12", "model=linear", "algorithm.batch=6", "evaluate_every=1")
HERE = ("engine=reference", "engine.device=cpu", "engine.threads=1")


def small(name: str, *more: str) -> Run:
    return Run(name, (*WORLD, "algorithm.cohort=4", "rounds=2", *more), None)


BOUND = small("all", "algorithm=centralised")
PRINTED = Number(50.0, "%", "Table 1, row one", spread=1.0)
ONE = Row("one", (small("fedavg"),), {AfterRounds("accuracy", 1): PRINTED, Relative(): None}, BOUND)
GRID = Row("grid", tuple(small(f"lr_{lr}", f"algorithm.lr={lr}") for lr in ("0.01", "1e30")), {Final("accuracy"): None})
TABLE = Item("test", "table1", "A table", (ONE, GRID), "All is well.", "As it is.", seeds=2)
FIGURE = Item("test", "figure1", "A figure", (ONE,), "")
MISSING = Row(
    "gone", (Run("gone", ("data=flair", "data.path=data/flair", "rounds=1"), Store("data/flair", ("flair",))),)
)
BROKEN = Item("test", "table2", "Half of a table", (MISSING, ONE), "")
MIXED = Row(
    "mixed",
    (small("fedavg"), small("lr_1e30", "algorithm.lr=1e30"), small("none", "algorithm.epochs=0")),
    {Final("accuracy"): None},
)
BESIDE = Item("test", "figure3", "Side by side", (MIXED,), "")
DATA = Item(
    "test",
    "figure2",
    "Data",
    (
        Row(
            "flair",
            stores=(Store("data/flair", ("flair", "--raw", "raw")),),
            expected={Count("users"): Number(51414, "users", "")},
        ),
    ),
    "",
)
PAPERS = (TABLE, FIGURE, BROKEN, BESIDE, DATA)


def accuracy(folder: str, round: int = -1) -> float:
    lines = Path("runs", folder, "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[round])["accuracy"])
