"""Progress of work that is counted, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MIN_SECONDS = 1e-9


@contextmanager
def counter(title: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a line for work that is counted, with its speed and the time left; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    ) as progress:
        task = progress.add_task(title, total=None, speed="")
        start = time.monotonic()

        def update(done: int, total: int) -> None:
            speed = done / max(time.monotonic() - start, MIN_SECONDS)
            progress.update(task, completed=done, total=total, speed=f"{speed:,.0f} {unit}/s")

        yield update
