"""Progress of work that is counted, on a terminal."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.run_files import Event

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


HEADLINE_METRICS = ("macro_ap", "accuracy")  # the first that an event has is shown
MIN_SECONDS = 1e-9


class ProgressBar(Callback):
    """A live line on the terminal."""

    def __init__(self, title: str) -> None:
        self._title, self._headline = title, ""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(file=sys.stderr))

    def on_train_start(self, run: TrainingRun) -> None:
        self._task = self._progress.add_task(self._title, total=run.config.rounds, completed=run.round, facts="")
        self._progress.start()

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        self._headline = headline(event) or self._headline
        facts = f"loss {event.get('train_loss', math.nan):.3f}  {self._headline}"
        if "epsilon" in event:
            facts += f"  epsilon {event['epsilon']:.2f}"
        if "seconds" in event:
            facts += f"  {event['num_images'] / max(event['seconds'], MIN_SECONDS):,.0f} images/s"
            self._progress.update(self._task, completed=event["round"], facts=facts)

    def close(self) -> None:
        self._progress.stop()


def progress_bar(title: str, show: bool | None = None) -> list[Callback]:
    """Return a progress bar if standard error is a terminal (or as `show` says), else nothing."""
    return [ProgressBar(title)] if (sys.stderr.isatty() if show is None else show) else []


def headline(event: Event) -> str:
    """Return the first metric of an event in words; empty if it was not evaluated."""
    return next((f"{name} {event[name]:.3f}" for name in HEADLINE_METRICS if name in event), "")
