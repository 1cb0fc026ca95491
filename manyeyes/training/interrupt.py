"""Ctrl-C: the round under way is finished, the run is saved, and the person is told how to go on."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType


class Interrupted(KeyboardInterrupt):
    """A person stopped the run, and it was saved."""


class Interrupt:
    """In a `with` statement: notes the first SIGINT or SIGTERM; a second stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._note:  # else somebody has other plans
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        words = "\nFinishing this round, then saving; press Ctrl-C again to stop at once.\n"
        os.write(2, words.encode())  # a handler may come in the middle of a print, which cannot be entered twice
