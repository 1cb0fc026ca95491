"""Every table and figure of the three papers, from the command to its page, at the smallest scale.

Few rows are run of those that differ only in numbers (a learning rate, a cohort size) or that combine settings of other
rows: the rows with a setting, or a value that is not a number, which no earlier row of the paper has; and the first row
of an exhibit that has none. Of a grid, one run is trained. One folder serves all exhibits, because they share runs.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from manyeyes.cli import reproduce
from manyeyes.papers import EXHIBITS, metric, scaling, statistics
from manyeyes.papers.exhibit import ExhibitRow, RunRecipe
from manyeyes.papers.figures import CHARTS
from manyeyes.papers.plan import ReproduceOptions
from manyeyes.papers.printed import printed_table
from manyeyes.papers.scaling import SCALED_BY_FACTOR
from tests.small_exhibits import ENGINE

TINY = ("synthetic=true", "scale=1e-6", "rounds=1", "seeds=1", "evaluate_every=0")
TINY_OPTIONS = ReproduceOptions(scale=1e-6, synthetic=True, rounds=1)
NAMES = ("data.task", "model", "model.trainable", "algorithm", "sampler", "example_weighting", "privacy")


@cache
def tiny_run(run: RunRecipe) -> RunRecipe:
    return TINY_OPTIONS.apply(run)


def features(row: ExhibitRow) -> frozenset[object]:
    """Return the settings of a row's run, with values that are not numbers, or the datasets that it describes."""
    settings = tiny_run(row.runs[0]).settings if row.runs else ()
    pairs = [setting.split("=", 1) for setting in settings]
    described = [("dataset", dataset.task) for dataset in row.datasets]
    return frozenset([*(name if _is_number(value) else (name, value) for name, value in pairs), *described])


@cache
def selected_rows() -> dict[str, list[ExhibitRow]]:
    """Return the rows of each exhibit that are run."""
    selected: dict[str, list[ExhibitRow]] = {}
    seen: dict[str, set[object]] = {exhibit.paper: set() for exhibit in EXHIBITS.values()}
    for key, exhibit in EXHIBITS.items():
        rows = sorted(exhibit.rows, key=lambda row: "FedPer" in row.name)  # whose clients save most of a ResNet34, last
        selected[key] = []
        for row in rows:
            if not features(row) <= seen[exhibit.paper]:
                seen[exhibit.paper] |= features(row)
                selected[key].append(row)
        selected[key] = selected[key] or rows[:1]
    return selected


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("e-", "").isdigit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exhibits")


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a crash may lose these files


@pytest.mark.slow
@pytest.mark.parametrize("key", EXHIBITS)
def test_an_exhibit_runs_from_the_command_to_its_page(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exhibit, rows = EXHIBITS[key], selected_rows()[key]
    monkeypatch.setattr(metric, "MIN_BUDGET", 1)  # so that budgets are within the only round
    monkeypatch.setattr(statistics, "RARE_FRACTION", 0.05)  # so that the few users are enough for a share of them
    if key in ("fedper.figure7", "fedper.figure8"):  # all clients take part, with batches of four, in large models
        monkeypatch.setitem(SCALED_BY_FACTOR, "data.users", ("users", 2))
    rows_of_data = printed_table("synthetic", "datasets")
    few = [["10" if row[0] == "inaturalist" and cell == "100" else cell for cell in row] for row in rows_of_data]
    monkeypatch.setattr(scaling, "printed_table", lambda *name: few)  # classes, so that no centralized accuracy is 0
    grid = [f"grid_filter={row.runs[0].name}" for row in rows if len(row.runs) > 1]
    assert reproduce.main([key, *(f"rows={row.name}" for row in rows), *grid, *TINY, *ENGINE]) == 0
    assert "manyeyes: " not in capsys.readouterr().err
    (report,) = Path("runs", exhibit.paper).glob(f"{exhibit.name}_scaled*.md")
    text = report.read_text()
    tag = "scaled by 1e-06, cut at 1 rounds, on synthetic data"
    assert f"These runs are {tag}, not the paper's: nothing is compared." in text
    lines = [line for line in text.partition("| row | metric |")[2].splitlines() if line.startswith("| ")][1:]
    names = {re.sub(r"( \[\d+\])+$", "", line.split(" | ")[0].removeprefix("| ")) for line in lines}
    assert names == {row.name for row in rows if row.expected}
    assert any(line.split(" | ")[3].strip() for line in lines)
    assert all(line.endswith("|  |  |") for line in lines), "a difference is printed"
    charts = sorted(report.parent.glob(f"{report.stem}_chart-*"))
    assert {path.suffix for path in charts} == {".svg", ".png", ".csv"}
    assert re.findall(r"\]\((\S+\.svg)\)", text) == [path.name for path in charts if path.suffix == ".svg"]
    page = report.with_suffix(".html").read_text()
    assert page.count('data-chart="chart-') >= len(charts) / 3
    assert "on synthetic data" in page


def test_every_exhibit_has_a_figure() -> None:
    assert all(exhibit.charts for exhibit in EXHIBITS.values())
    assert {chart["kind"] for exhibit in EXHIBITS.values() for chart in exhibit.charts} == set(CHARTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "select_best_on", "evaluate_every_fraction"])
def test_every_model_dataset_and_algorithm_of_the_papers_is_run(name: str) -> None:
    rows = [row for exhibit_rows in selected_rows().values() for row in exhibit_rows]
    values = {tiny_run(row.runs[0]).setting(name) for row in rows if row.runs}
    assert values >= {tiny_run(run).setting(name) for exhibit in EXHIBITS.values() for run in exhibit.runs}
