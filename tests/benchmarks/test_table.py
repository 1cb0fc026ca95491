"""Rows as a table, a line and a record."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks.rounds.case import Case, Measured
from benchmarks.rounds.table import line, ratio, record, table

SHARED = {"work": "small", "device": "cpu", "rounds": 3, "warmup": 1}
OURS = Measured(Case(runner="ours", engine="auto", **SHARED), (0.5, 0.4, 0.6), (100, 100, 100), host_bytes=2**29)  # type: ignore[arg-type]
PLAIN = Measured(Case(runner="plain", threads=2, **SHARED), (1.0, 1.2, 0.8), (100, 100, 100), gpu_bytes=2**30)  # type: ignore[arg-type]
PFL = Measured(Case(runner="pfl", **SHARED), failure="not installed", reason="pfl is not installed: ...")  # type: ignore[arg-type]
LARGE = Measured(Case(runner="plain", cohort=5000, **SHARED), (9.0,), (1000,))  # type: ignore[arg-type]
ROWS = [OURS, PLAIN, PFL, LARGE]


def shown(*rows: Measured) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_table_shows_median_range_speed_ratio_and_memory() -> None:
    (row,) = (text for text in shown(*ROWS).splitlines() if "plain 2 threads" in text)
    for cell in ("  1  ", "0.8 - 1.2", " 100 ", " 2.00 ", "1,024"):
        assert cell in row


def test_a_row_without_numbers_says_why() -> None:
    assert "not installed" in shown(PFL)
    assert line(PFL) == "small: pfl: not installed (pfl is not installed: ...)"


def test_a_line_tells_a_row() -> None:
    assert line(OURS) == "small: manyeyes auto: 0.5 s a round (0.4 to 0.6), 200 images/s"


def test_ratios_stay_within_a_work_of_one_size() -> None:
    assert [ratio(row, ROWS) for row in ROWS] == [1.0, 2.0, None, None]


def test_a_record_holds_machine_command_and_every_number() -> None:
    held = json.loads(record(ROWS, {"command": "manyeyes bench", "cpus": 2}))
    assert held["command"] == "manyeyes bench" and held["cpus"] == 2 and "LeNet" in held["works"]["small"]
    assert held["rows"][1]["seconds"] == [1.0, 1.2, 0.8]
    assert held["rows"][1]["case"]["threads"] == 2
    assert held["rows"][1]["images_per_second"] == pytest.approx(100)
    assert held["rows"][2]["failure"] == "not installed"
