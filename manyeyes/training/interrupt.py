"""Ctrl-C: the current round is finished, the run is saved, and the user is told how to continue it."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

FIRST_SIGNAL_MESSAGE = "\nFinishing this round, then saving; press Ctrl-C again to stop at once.\n"


class Interrupted(KeyboardInterrupt):
    """A user stopped the run, and it was saved."""


class Interrupt:
    """A context manager that records the first SIGINT or SIGTERM; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[int, object] = {}  # that were there before

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._record:  # else someone has replaced it since
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        os.write(2, FIRST_SIGNAL_MESSAGE.encode())  # print is not reentrant, and a signal may interrupt one
