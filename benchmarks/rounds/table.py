"""Results as a table, as a line of progress, and as a record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from itertools import groupby
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.rounds.case import BenchCase, BenchResult
from benchmarks.rounds.workloads import WORKLOADS


def make_table(results: Sequence[BenchResult]) -> Table:
    """Return a table with the results of a workload together; ratios are relative to the first of our engines."""
    has_gpu = any(result.gpu_bytes for result in results)
    headers = ["", "s / round", "from - to", "images/s", "ratio", *(["GPU MiB"] if has_gpu else []), "host MiB"]
    table = Table(*headers, box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, group in groupby(results, key=lambda result: heading(result.case)):
        same_workload = list(group)
        table.add_row(f"[bold]{title}[/]")
        for result in same_workload:
            cells = [result.case.label, *_speed_cells(result, same_workload)]
            cells += [f"{result.gpu_bytes / 2**20:,.0f}" if result.gpu_bytes else ""] if has_gpu else []
            table.add_row(*cells, f"{result.host_bytes / 2**20:,.0f}" if result.host_bytes else "")
        table.add_section()
    return table


def format_line(result: BenchResult) -> str:
    """Return one line for a result."""
    label = f"{heading(result.case)}: {result.case.label}: "
    if result.failure:
        return label + f"{result.failure} ({result.reason})"
    seconds = result.seconds
    return label + (
        f"{median(seconds):.4g} s per round ({min(seconds):.4g} to {max(seconds):.4g}), {speed(result):,.0f} images/s"
    )


def make_record(results: Sequence[BenchResult], metadata: dict[str, Any]) -> str:
    """Return a record as JSON: what is needed to repeat the measurement, and every number."""
    rows = [
        asdict(result)
        | {"label": result.case.label}
        | ({} if result.failure else {"median_seconds": median(result.seconds), "images_per_second": speed(result)})
        | {"ratio": ratio(result, results)}
        for result in results
    ]
    workloads = {r.case.workload: WORKLOADS[r.case.workload].description for r in results}
    return json.dumps({"date": str(date.today()), **metadata, "workloads": workloads, "rows": rows}, indent=1) + "\n"


def speed(result: BenchResult) -> float:
    """Return the images per second of the median round."""
    return median(images / seconds for images, seconds in zip(result.images, result.seconds, strict=True))


def ratio(result: BenchResult, results: Sequence[BenchResult]) -> float | None:
    """Return the time per image relative to that of the first of our engines on the same workload."""
    same_workload = [r for r in results if heading(r.case) == heading(result.case)]
    baseline = next((r for r in same_workload if r.case.runner == "ours" and not r.failure), None)
    if baseline is None or result.failure:
        return None
    return speed(baseline) / speed(result)


def heading(case: BenchCase) -> str:
    """Return the name of the workload and what is changed in it."""
    changes = [f"{count:,} {unit}" for count, unit in ((case.users, "users"), (case.cohort, "clients")) if count]
    return ", ".join([case.workload, *changes])


def _speed_cells(result: BenchResult, results: Sequence[BenchResult]) -> list[str]:
    if result.failure:
        return [result.failure, "", "", ""]
    relative_time = ratio(result, results)
    return [
        f"{median(result.seconds):.4g}",
        f"{min(result.seconds):.4g} - {max(result.seconds):.4g}",
        f"{speed(result):,.0f}",
        "" if relative_time is None else f"{relative_time:.2f}",
    ]
