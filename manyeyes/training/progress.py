"""Progress: a line that says round, loss, metric, images/s and time left; silent when nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar(Protocol):
    """What the training loop tells of a round."""

    def __enter__(self) -> ProgressBar: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def advance(self, round: int, loss: float, metric: str, images_per_second: float) -> None: ...


class Bar:
    """A live line on the terminal."""

    def __init__(self, title: str, done: int, rounds: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(file=sys.stderr))
        self._task = self._progress.add_task(title, total=rounds, completed=done, facts="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def advance(self, round: int, loss: float, metric: str, images_per_second: float) -> None:
        facts = f"loss {loss:.3f}  {metric}  {images_per_second:,.0f} images/s"
        self._progress.update(self._task, completed=round, facts=facts)


class NullProgress:
    """Nothing."""

    def __enter__(self) -> NullProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def advance(self, round: int, loss: float, metric: str, images_per_second: float) -> None:
        pass


def progress_bar(title: str, done: int, rounds: int, show: bool | None = None) -> ProgressBar:
    """A bar if somebody looks at standard error (or `show` says so), else silence."""
    looks = sys.stderr.isatty() if show is None else show
    return Bar(title, done, rounds) if looks else NullProgress()


@contextmanager
def counter(title: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """A line for work that is counted, with rate and time left; None where nobody looks."""
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
        began = time.monotonic()

        def tell(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - began, 1e-9)
            progress.update(task, completed=done, total=total, speed=f"{rate:,.0f} {unit}/s")

        yield tell
