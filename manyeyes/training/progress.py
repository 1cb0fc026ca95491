"""Progress of work that is counted, on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.headline import headline_metric
from manyeyes.training.run_files import Event

MIN_SECONDS = 1e-9


@contextmanager
def counter(title: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a line for work that is counted, with its speed and the time left; None unless standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _progress_line() as progress:
        task = progress.add_task(title, total=None, text="")
        start = time.monotonic()

        def update(done: int, total: int) -> None:
            speed = done / max(time.monotonic() - start, MIN_SECONDS)
            progress.update(task, completed=done, total=total, text=f"{speed:,.0f} {unit}/s")

        yield update


class ProgressBar(Callback):
    """A live line on the terminal."""

    def __init__(self, title: str) -> None:
        self._title, self._headline, self._progress = title, "", _progress_line()

    def on_train_start(self, run: TrainingRun) -> None:
        self._task = self._progress.add_task(self._title, total=run.config.rounds, completed=run.round, text="")
        self._progress.start()

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        self._headline = headline(event) or self._headline
        if not event["round"]:
            return
        texts = [f"loss {event['train_loss']:.3f}"] if "train_loss" in event else []  # private runs do not report it
        texts += [self._headline] if self._headline else []
        if "epsilon" in event:
            texts.append(f"epsilon {event['epsilon']:.2f}")
        if "num_images" in event:
            texts.append(f"{event['num_images'] / max(event['seconds'], MIN_SECONDS):,.0f} images/s")
        self._progress.update(self._task, completed=event["round"], text="  ".join(texts))

    def close(self) -> None:
        self._progress.stop()


def _progress_line() -> Progress:
    """Return a line with a title, a bar, a count, a text and the time left."""
    title, text = (TextColumn(f"{{task.{name}}}") for name in ("description", "fields[text]"))
    columns = (title, BarColumn(bar_width=None), MofNCompleteColumn(), text, TimeRemainingColumn())
    return Progress(*columns, console=Console(file=sys.stderr))


def progress_bar(title: str, show: bool | None = None) -> list[Callback]:
    """Return a progress bar if standard error is a terminal (or as `show` says), else nothing."""
    return [ProgressBar(title)] if (sys.stderr.isatty() if show is None else show) else []


def headline(event: Event) -> str:
    """Return the first metric of an event as text; empty if it was not evaluated."""
    metric = headline_metric(event)
    return "" if metric is None else f"{metric} {event[metric]:.3f}"
