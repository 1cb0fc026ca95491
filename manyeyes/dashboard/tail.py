"""Files below the board's folder, read as they grow; never through a link, and nothing but plain files."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PIECE = 2**22  # bytes that are read at a time
GUARD = 256  # bytes before the place read up to: where they have changed, the file is another


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A plain file to read from; a link, a pipe or a device is an OSError, and never waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is no plain file")
        yield file
    finally:
        os.close(file)


def read_small(path: str, most: int = 2**18) -> bytes:
    """A whole file that is expected to be small."""
    with opened(path) as file:
        if os.fstat(file).st_size > most:
            raise OSError(f"{path} is too large")
        return os.read(file, most)


class TailReader:
    """A file of lines; each call of `read` returns those that are whole and new since the last one."""

    def __init__(self, path: str, window: int | None = None) -> None:
        """Begin with the lines in the last `window` bytes, or with the first line."""
        self.path, self._window = path, window
        self._file = (0, 0)
        self._offset = 0
        self._before = b""
        self.whole = True  # whether the first line was among them

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether the file was cut or replaced since, so that everything begins anew, and the next lines."""
        with opened(self.path) as file:
            about = os.fstat(file)
            same = (about.st_dev, about.st_ino) == self._file and about.st_size >= self._offset
            anew = not same or os.pread(file, GUARD, max(0, self._offset - GUARD))[: len(self._before)] != self._before
            start = self._offset
            if anew:
                self._file = (about.st_dev, about.st_ino)
                start = 0 if self._window is None else max(0, about.st_size - self._window)
                self.whole = start == 0
            data = os.pread(file, about.st_size - start if self._window else PIECE, start)
            begin = data.find(b"\n") + 1 if anew and start else 0
            end = data.rfind(b"\n") + 1
            if not end and len(data) == PIECE:  # no line is as long as this: what it is of is skipped
                end = len(data)
            self._offset = start + end
            self._before = os.pread(file, min(GUARD, self._offset), max(0, self._offset - GUARD))
        return anew, data[begin:end].split(b"\n")[:-1]


def event(line: bytes) -> dict[str, Any] | None:
    """What a line of a metrics file says, if it is one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or type(found.get("round")) is not int:  # nor true, which is a kind of 1
        return None
    return found if 0 <= found["round"] < 2**53 else None


def numbers(found: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers of an event, its round aside."""
    for name, value in found.items():
        if name == "round" or not isinstance(value, int | float):
            continue
        try:
            number = float(value)
        except OverflowError:
            continue
        if math.isfinite(number):
            yield name, number
