"""Columns of a run's numbers, and downsampled curves of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.dashboard.curves import MAX_CACHED_RUNS, MAX_POINTS, Columns, CurveCache
from manyeyes.report.downsample import downsample_minmax

ROUNDS: list[dict[str, Any]] = [
    {"round": 0, "accuracy": 0.1},
    {"round": 1, "loss": 3.0, "seconds": 0.5, "num_images": 10},
    {"round": 2, "loss": 2.0, "seconds": 0.25, "num_images": 20, "accuracy": 0.4},
    {"round": 3, "loss": 1.0, "seconds": 0.25, "num_images": 30, "epsilon": 1.5},
]


def append(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append(tmp_path / "metrics.jsonl", *ROUNDS)
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def columns(path: Path) -> Columns:
    columns = Columns(str(path))
    columns.refresh()
    return columns


def points(columns: Columns, x: str, y: str) -> list[list[float]]:
    curve = columns.curve(x, y)
    assert curve is not None
    return [column.tolist() for column in curve]


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("round", "loss", [[1, 2, 3], [3, 2, 1]]),
        ("round", "accuracy", [[0, 2], [0.1, 0.4]]),
        ("seconds", "loss", [[0.5, 0.75, 1.0], [3, 2, 1]]),
        ("num_images", "accuracy", [[0, 30], [0.1, 0.4]]),
        ("epsilon", "loss", [[1.5], [1]]),
    ],
)
def test_a_curve_is_a_column_over_rounds_or_cumulative_costs(
    columns: Columns, x: str, y: str, expected: list[list[float]]
) -> None:
    assert points(columns, x, y) == expected


def test_a_missing_column_has_no_curve(columns: Columns) -> None:
    assert columns.curve("round", "nothing") is None
    assert columns.curve("max_client_batches", "loss") is None


def test_repeated_rounds_replace_the_earlier_ones(path: Path, columns: Columns) -> None:
    append(path, {"round": 2, "loss": 7.0, "seconds": 0.1})
    columns.refresh()
    assert points(columns, "round", "loss") == [[1, 2], [3, 7]]
    assert points(columns, "round", "accuracy") == [[0], [0.1]]
    assert "epsilon" not in columns.names


def test_a_downsampled_curve_keeps_its_peaks_and_its_ends() -> None:
    x = np.arange(5000.0)
    y = np.sin(x / 500)
    y[[1234, 4321]] = 50, -50
    indices = downsample_minmax(x, y, MAX_POINTS)
    assert len(indices) <= MAX_POINTS
    assert (np.diff(indices) > 0).all()
    assert {0, 1234, 4321, 4999} <= set(indices.tolist())


def test_a_short_curve_is_not_downsampled() -> None:
    x = np.arange(float(MAX_POINTS))
    assert downsample_minmax(x, -x, MAX_POINTS).tolist() == list(range(MAX_POINTS))


def test_downsampling_of_a_curve_with_gaps_keeps_its_values() -> None:
    y = np.full(5000, np.nan)
    y[[10, 2500]] = 1, 2
    assert {10, 2500} <= set(downsample_minmax(np.arange(5000), y, MAX_POINTS).tolist())


def test_the_curve_of_a_long_run_is_downsampled(tmp_path: Path) -> None:
    append(tmp_path / "long", *({"round": round, "loss": 77.0 if round == 1234 else 1.0} for round in range(5000)))
    columns = Columns(str(tmp_path / "long"))
    columns.refresh()
    rounds, losses = points(columns, "round", "loss")
    assert len(rounds) <= MAX_POINTS
    assert (rounds[0], rounds[-1], rounds[losses.index(77)]) == (0, 4999, 1234)


def test_the_cache_keeps_the_runs_that_were_requested_last(tmp_path: Path) -> None:
    cache = CurveCache()
    for number in range(MAX_CACHED_RUNS + 3):
        append(tmp_path / f"{number}", {"round": number, "loss": 1.0})
        result = cache.curves(str(tmp_path / f"{number}"), "round", ["loss", "nothing"])
        assert result is not None
        assert result[0] == ["loss"]
        assert [column.tolist() for column in result[1]["loss"]] == [[number], [1.0]]
    assert cache.columns.cache_info().currsize == MAX_CACHED_RUNS
    assert cache.curves(str(tmp_path / "nowhere"), "round", []) is None
