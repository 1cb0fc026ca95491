"""Measured rows for a terminal, for a line of progress and for a record."""

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

from benchmarks.rounds.case import Case, Measured
from benchmarks.rounds.works import WORKS


def table(rows: Sequence[Measured]) -> Table:
    """Rows of the same work together; ratios are to the first of ours."""
    gpu = any(row.gpu_bytes for row in rows)
    heads = ["", "s / round", "from - to", "images/s", "ratio", *(["GPU MiB"] if gpu else []), "host MiB"]
    made = Table(*heads, box=box.SIMPLE)
    for column in made.columns[1:]:
        column.justify = "right"
    for title, group in groupby(rows, key=lambda row: heading(row.case)):
        same = list(group)
        made.add_row(f"[bold]{title}[/]")
        for row in same:
            cells = [row.case.label, *_speed(row, same)]
            cells += [f"{row.gpu_bytes / 2**20:,.0f}" if row.gpu_bytes else ""] if gpu else []
            made.add_row(*cells, f"{row.host_bytes / 2**20:,.0f}" if row.host_bytes else "")
        made.add_section()
    return made


def line(row: Measured) -> str:
    """A row that has just been measured."""
    begin = f"{heading(row.case)}: {row.case.label}: "
    if row.failure:
        return begin + f"{row.failure} ({row.reason})"
    low, high = min(row.seconds), max(row.seconds)
    return begin + f"{median(row.seconds):.4g} s a round ({low:.4g} to {high:.4g}), {speed(row):,.0f} images/s"


def record(rows: Sequence[Measured], environment: dict[str, Any]) -> str:
    """All that is needed to repeat the measurement, and every number of it."""
    lines = [
        asdict(row)
        | {"label": row.case.label}
        | ({} if row.failure else {"median_seconds": median(row.seconds), "images_per_second": speed(row)})
        | {"ratio": ratio(row, rows)}
        for row in rows
    ]
    works = {row.case.work: WORKS[row.case.work].about for row in rows}
    return json.dumps({"date": str(date.today()), **environment, "works": works, "rows": lines}, indent=1) + "\n"


def speed(row: Measured) -> float:
    """Images a second, the median over the measured rounds."""
    return median(images / seconds for images, seconds in zip(row.images, row.seconds, strict=True))


def ratio(row: Measured, rows: Sequence[Measured]) -> float | None:
    """How many times as long an image takes as with the first of ours on the same work."""
    alike = [other for other in rows if heading(other.case) == heading(row.case)]
    ours = next((other for other in alike if other.case.runner == "ours" and not other.failure), None)
    if ours is None or row.failure:
        return None
    return speed(ours) / speed(row)


def heading(case: Case) -> str:
    """The work, and what is changed in it."""
    changes = [f"{count:,} {what}" for count, what in ((case.users, "users"), (case.cohort, "clients")) if count]
    return ", ".join([case.work, *changes])


def _speed(row: Measured, rows: Sequence[Measured]) -> list[str]:
    if row.failure:
        return [row.failure, "", "", ""]
    times = ratio(row, rows)
    return [
        f"{median(row.seconds):.4g}",
        f"{min(row.seconds):.4g} - {max(row.seconds):.4g}",
        f"{speed(row):,.0f}",
        "" if times is None else f"{times:.2f}",
    ]
