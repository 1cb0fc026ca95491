"""Results as a table, a line and a record."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from benchmarks.rounds.case import BenchCase, BenchResult
from benchmarks.rounds.table import format_line, make_record, make_table, ratio


def make_case(runner: str, **options: Any) -> BenchCase:
    return BenchCase(workload="small", runner=runner, device="cpu", rounds=3, warmup=1, **options)


OURS = BenchResult(make_case("ours", engine="auto"), (0.5, 0.4, 0.6), (100, 100, 100), host_bytes=2**29)
PLAIN = BenchResult(make_case("plain", threads=2), (1.0, 1.2, 0.8), (100, 100, 100), gpu_bytes=2**30)
PFL = BenchResult(make_case("pfl"), failure="not installed", reason="pfl is not installed: ...")
LARGE = BenchResult(make_case("plain", cohort=5000), (9.0,), (1000,))
RESULTS = [OURS, PLAIN, PFL, LARGE]


def render(*results: BenchResult) -> str:
    output = io.StringIO()
    Console(file=output, width=120).print(make_table(results))
    return output.getvalue()


def test_a_table_shows_median_range_speed_ratio_and_memory() -> None:
    (row,) = (line for line in render(*RESULTS).splitlines() if "plain 2 threads" in line)
    for cell in ("  1  ", "0.8 - 1.2", " 100 ", " 2.00 ", "1,024"):
        assert cell in row


def test_a_result_without_numbers_says_why() -> None:
    assert "not installed" in render(PFL)
    assert format_line(PFL) == "small: pfl: not installed (pfl is not installed: ...)"


def test_a_line_shows_median_range_and_speed() -> None:
    assert format_line(OURS) == "small: manyeyes auto: 0.5 s per round (0.4 to 0.6), 200 images/s"


def test_ratios_are_between_results_of_the_same_workload_and_size() -> None:
    assert [ratio(result, RESULTS) for result in RESULTS] == [1.0, 2.0, None, None]


def test_a_record_has_machine_command_and_every_number() -> None:
    record = json.loads(make_record(RESULTS, {"command": "python -m benchmarks.rounds", "cpus": 2}))
    assert record["command"] == "python -m benchmarks.rounds" and record["cpus"] == 2
    assert "LeNet" in record["workloads"]["small"]
    assert record["rows"][1]["seconds"] == [1.0, 1.2, 0.8]
    assert record["rows"][1]["case"]["threads"] == 2
    assert record["rows"][1]["images_per_second"] == pytest.approx(100)
    assert record["rows"][2]["failure"] == "not installed"
