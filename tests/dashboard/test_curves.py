"""Columns of a run's numbers, and curves of as many points as a screen shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.dashboard.curves import MAX_CACHED_RUNS, POINTS, Columns, CurveCache, downsample_minmax

ROUNDS: list[dict[str, Any]] = [
    {"round": 0, "accuracy": 0.1},
    {"round": 1, "loss": 3.0, "seconds": 0.5, "images": 10},
    {"round": 2, "loss": 2.0, "seconds": 0.25, "images": 20, "accuracy": 0.4},
    {"round": 3, "loss": 1.0, "seconds": 0.25, "images": 30, "epsilon": 1.5},
]


def append(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in events)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append(tmp_path / "metrics.jsonl", *ROUNDS)
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def columns(path: Path) -> Columns:
    found = Columns(str(path))
    found.refresh()
    return found


def points(columns: Columns, x: str, y: str) -> list[list[float]]:
    found = columns.curve(x, y)
    assert found is not None
    return [part.tolist() for part in found]


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("round", "loss", [[1, 2, 3], [3, 2, 1]]),
        ("round", "accuracy", [[0, 2], [0.1, 0.4]]),
        ("seconds", "loss", [[0.5, 0.75, 1.0], [3, 2, 1]]),
        ("images", "accuracy", [[0, 30], [0.1, 0.4]]),
        ("epsilon", "loss", [[1.5], [1]]),
    ],
)
def test_a_curve_is_a_column_over_rounds_or_over_what_they_took(
    columns: Columns, x: str, y: str, expected: list[list[float]]
) -> None:
    assert points(columns, x, y) == expected


def test_a_column_that_is_not_there_has_no_curve(columns: Columns) -> None:
    assert columns.curve("round", "nothing") is None
    assert columns.curve("batches", "loss") is None


def test_rounds_that_are_played_again_take_the_place_of_the_first(path: Path, columns: Columns) -> None:
    append(path, {"round": 2, "loss": 7.0, "seconds": 0.1})
    columns.refresh()
    assert points(columns, "round", "loss") == [[1, 2], [3, 7]]
    assert points(columns, "round", "accuracy") == [[0], [0.1]]
    assert "epsilon" not in columns.names


def test_a_thinned_curve_keeps_its_peaks_and_its_ends() -> None:
    x = np.arange(5000.0)
    y = np.sin(x / 500)
    y[[1234, 4321]] = 50, -50
    at, values = downsample_minmax(x, y)
    assert len(at) <= POINTS + 2
    assert (np.diff(at) > 0).all()
    assert {0.0, 1234.0, 4321.0, 4999.0} <= set(at)
    assert np.array_equal(values, y[at.astype(int)])


def test_a_short_curve_is_left_as_it_is() -> None:
    x = np.arange(float(POINTS))
    assert np.array_equal(downsample_minmax(x, -x)[1], -x)


def test_the_shelf_keeps_what_was_looked_at_last(tmp_path: Path) -> None:
    shelf = CurveCache()
    for number in range(MAX_CACHED_RUNS + 3):
        append(tmp_path / f"{number}", {"round": number, "loss": 1.0})
        found = shelf.curves(str(tmp_path / f"{number}"), "round", ["loss", "nothing"])
        assert found is not None
        assert found[0] == ["loss"]
        assert [part.tolist() for part in found[1]["loss"]] == [[number], [1.0]]
    assert len(shelf._kept) == MAX_CACHED_RUNS
    assert shelf.curves(str(tmp_path / "nowhere"), "round", []) is None
