"""Progress: a live line on a terminal or in a notebook, and a plain line now and then where there is neither."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manyeyes.io.steps import STEPS, format_seconds, shows_progress
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.headline import headline_metric
from manyeyes.training.run_files import Event

MIN_SECONDS = 1e-9
PLAIN_SECONDS, NOTEBOOK_SECONDS = 10.0, 0.5  # at least between two plain lines, and two updates of a notebook


class Display(Protocol):
    """Shows how far some work is."""

    def step(self, text: str) -> None:
        """Show what begins now."""

    def update(self, done: int, total: int, text: str) -> None:
        """Show how much is done."""

    def note(self, text: str) -> None:
        """Show a sentence that stays."""

    def close(self) -> None: ...


class TerminalLine:
    """A live line with a bar, a count, a text and the time left."""

    def __init__(self, title: str) -> None:
        name, text = (TextColumn(f"{{task.{name}}}") for name in ("description", "fields[text]"))
        columns = (name, BarColumn(bar_width=None), MofNCompleteColumn(), text, TimeRemainingColumn())
        redirects = sys.stdout.isatty()  # what is printed goes above the line, but never from a file to the terminal
        self._progress = Progress(*columns, console=Console(file=sys.stderr), redirect_stdout=redirects)
        self._task = self._progress.add_task(title, total=None, text="")
        self._progress.start()

    def step(self, text: str) -> None:
        self._progress.update(self._task, text=text, refresh=True)

    def update(self, done: int, total: int, text: str) -> None:
        self._progress.update(self._task, completed=done, total=total, text=text)

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        task = self._progress.tasks[0]
        self._progress.update(self._task, visible=task.total is not None)  # steps alone leave nothing behind
        self._progress.stop()


class PlainLines:
    """Lines with the time of day: each new kind of step, and how much is done every ten seconds."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock, self._seen = title, clock, set[str]()
        self._printed_at, self._started, self._done, self._total = -PLAIN_SECONDS, (0.0, -1), -1, -1

    def step(self, text: str) -> None:
        if text not in self._seen or self._clock() - self._printed_at >= PLAIN_SECONDS:
            self._print(text)
        self._seen.add(text)

    def update(self, done: int, total: int, text: str) -> None:
        now, is_first = self._clock(), total != self._total  # something else is counted now
        if is_first:
            self._done, self._total = -1, total
        if done == self._done or not (is_first or done == total or now - self._printed_at >= PLAIN_SECONDS):
            return
        self._done, self._started = done, (now, done) if is_first else self._started
        speed = (done - self._started[1]) / max(now - self._started[0], MIN_SECONDS)
        left = f"{format_seconds((total - done) / speed)} left" if speed and done < total else ""
        self._print("  ".join(filter(None, (f"{done:,} of {total:,}", text, left))))

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        self._printed_at = self._clock()
        print(f"[{time.strftime('%H:%M:%S')}] {self._title}: {text}", file=sys.stderr, flush=True)


class NotebookLine:
    """A bar and a text below the cell of a notebook that is running."""

    def __init__(self, title: str) -> None:
        from IPython import display  # type: ignore[import-not-found, unused-ignore]

        self._html: Any = display.HTML
        self._title, self._bar, self._notes, self._shown_at = title, "", "", 0.0
        self._handle: Any = display.display(self._html(self._page("")), display_id=True)

    def step(self, text: str) -> None:
        self._show(text)

    def update(self, done: int, total: int, text: str) -> None:
        self._bar = f'<progress value="{done}" max="{total}"></progress> {done:,}/{total:,} '
        if done == total or time.monotonic() - self._shown_at >= NOTEBOOK_SECONDS:
            self._show(text)

    def note(self, text: str) -> None:
        self._notes += f"<div>{escape(text)}</div>"

    def close(self) -> None: ...

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._handle.update(self._html(self._page(text)))

    def _page(self, text: str) -> str:
        return f"{self._notes}<div>{escape(self._title)} {self._bar}{escape(text)}</div>"


class RoundProgress(Callback):
    """Shows notes about a run before its first round, and then each round."""

    def __init__(self, display: Display, notes: Iterable[str] = ()) -> None:
        self._display, self._notes, self._headline = display, notes, ""

    def on_train_start(self, run: TrainingRun) -> None:
        self._total = run.config.rounds
        if not run.round:
            for note in self._notes:
                self._display.note(note)
            self._display.step(f"training {self._total:,} rounds")

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
        self._display.update(event["round"], self._total, "  ".join(texts))


class _StepHandler(logging.Handler):
    """Shows the steps that are announced."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.INFO)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        done, total = getattr(record, "done", None), getattr(record, "total", None)
        if done is None or total is None:
            self._display.step(record.getMessage())
        else:
            self._display.update(done, total, record.getMessage())


@contextmanager
def show_progress(title: str, show: bool | None = None) -> Iterator[Display | None]:
    """Show the steps that are announced within this context.

    By default they are shown on a terminal and in a notebook; `show` forces plain lines elsewhere, or nothing at all.
    Of several processes of one run, the first shows them.
    """
    display = None if os.environ.get("RANK", "0") != "0" else make_display(title, show)
    if display is None:
        yield None
        return
    handler, level = _StepHandler(display), STEPS.level
    STEPS.addHandler(handler)
    STEPS.setLevel(logging.INFO)
    try:
        yield display
    finally:
        STEPS.removeHandler(handler)
        STEPS.setLevel(level)
        display.close()


def make_display(title: str, show: bool | None = None) -> Display | None:
    """Return what can show progress here; None where nothing should."""
    if show is False:
        return None
    if _is_notebook():
        return NotebookLine(title)
    if sys.stderr.isatty():
        return TerminalLine(title)
    return PlainLines(title) if show else None


@contextmanager
def counter(title: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show work of a command that is counted, with its speed and the time left."""
    with show_progress(title, shows_progress()) as display:
        start = time.monotonic()

        def update(done: int, total: int) -> None:
            assert display is not None, "returned only with a display"
            display.update(done, total, f"{done / max(time.monotonic() - start, MIN_SECONDS):,.0f} {unit}/s")

        yield None if display is None else update


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_shell(), "kernel")


def headline(event: Event) -> str:
    """Return the first metric of an event as text; empty if it was not evaluated."""
    metric = headline_metric(event)
    return "" if metric is None else f"{metric} {event[metric]:.3f}"
