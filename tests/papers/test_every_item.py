"""Every table and figure of the three papers, from the command to its page, at the least scale that there is.

Of rows that differ in numbers alone (a rate, a cohort, a taste), or that mix what other rows have, few are run: those
with a setting, or with a value of one that is no number, which no row of the paper before them has; and the first row
of an item where that is none. Of a grid one run is run. Papers share their runs, so that one folder serves all items.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from manyeyes.cli.reproduce import reproduce
from manyeyes.papers import ITEMS
from manyeyes.papers import metric as measure
from manyeyes.papers.exhibit import ExhibitRow
from manyeyes.papers.figures import FIGURES
from manyeyes.papers.plan import ReproduceOptions
from manyeyes.papers.scaling import BY_FACTOR

TINY = ("stand_in=true", "scale=1e-6", "rounds=1", "seeds=1", "evaluate_every=0")
HERE = ("engine=reference", "engine.device=cpu", "engine.threads=1")
SMALL = ReproduceOptions(scale=1e-6, synthetic=True, rounds=1)
NAMES = ("data.task", "model", "model.train", "algorithm", "algorithm.select", "algorithm.importance", "privacy")


def features(row: ExhibitRow) -> frozenset[object]:
    """The settings of a row's run, those that are no numbers with their values; or what is shown of data."""
    words = SMALL.apply(row.runs[0]).settings if row.runs else ()
    pairs = [word.split("=", 1) for word in words]
    shown = [("shown", store.task) for store in row.stores]
    return frozenset([name if _is_number(value) else (name, value) for name, value in pairs] + shown)


@cache
def chosen() -> dict[str, list[ExhibitRow]]:
    """The rows of each item that are run."""
    found: dict[str, list[ExhibitRow]] = {}
    seen: dict[str, set[object]] = {one.paper: set() for one in ITEMS.values()}
    for key, one in ITEMS.items():
        found[key] = []
        rows = sorted(one.rows, key=lambda row: "FedPer" in row.name)  # whose clients keep most of a ResNet34, last
        for row in rows:
            if not features(row) <= seen[one.paper]:
                seen[one.paper] |= features(row)
                found[key].append(row)
        found[key] = found[key] or rows[:1]
    return found


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("e-", "").isdigit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("items")


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # what a crash would lose does not matter here
    return


@pytest.mark.parametrize("key", ITEMS)
def test_an_item_runs_from_the_command_to_its_page(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rows = ITEMS[key], chosen()[key]
    monkeypatch.setattr(measure, "LEAST", 1)  # so that budgets are within the one round that is played
    if one.paper == "fedper":  # whose clients all take part, some by batches of four, in models of 20 million numbers
        monkeypatch.setitem(BY_FACTOR, "data.users", ("users", 2))
    grid = [f"grid={row.runs[0].name}" for row in rows if len(row.runs) > 1]
    assert reproduce([key, *(f"row={row.name}" for row in rows), *grid, *TINY, *HERE]) == 0
    said = capsys.readouterr()
    assert "manyeyes: " not in said.err
    (report,) = Path("runs", one.paper).glob(f"{one.name}_scaled*.md")
    text = report.read_text()
    assert (
        "These runs are scaled by 1e-06, cut at 1 rounds, on stand-ins, not the paper's: nothing is compared." in text
    )
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert {line.split(" | ")[0].removeprefix("| ") for line in lines} == {row.name for row in rows if row.expected}
    assert any(line.split(" | ")[3].strip() for line in lines)
    assert all(line.endswith("|  |  |") for line in lines), "a difference is printed"
    charts = sorted(report.parent.glob(f"{report.stem}_chart-*"))
    assert {path.suffix for path in charts} == {".svg", ".png", ".csv"}
    assert re.findall(r"\]\((\S+\.svg)\)", text) == [path.name for path in charts if path.suffix == ".svg"]
    page = report.with_suffix(".html").read_text()
    assert page.count('data-chart="chart-') >= len(charts) / 3
    assert "on stand-ins" in page


def test_every_item_has_a_figure() -> None:
    assert set(FIGURES) == set(ITEMS)


@pytest.mark.parametrize("name", [*NAMES, "best_on", "evaluate_early"])
def test_every_model_dataset_and_algorithm_of_the_papers_is_run(name: str) -> None:
    run = {SMALL.apply(row.runs[0]).setting(name) for rows in chosen().values() for row in rows if row.runs}
    assert run >= {SMALL.apply(found).setting(name) for one in ITEMS.values() for found in one.runs}
