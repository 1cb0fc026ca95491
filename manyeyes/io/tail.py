"""Files that another process writes: read as they grow, never through a link, and only regular files."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from manyeyes.io.portable import OPEN_FLAGS, pread

CHUNK_BYTES = 2**22
GUARD_BYTES = 256  # before the position that was read up to: where they have changed, the file is another one
MAX_SMALL_BYTES = 2**18


@contextmanager
def open_regular_file(path: str) -> Iterator[int]:
    """Open a regular file; a link, a pipe or a device raises OSError instead of being waited for."""
    file = os.open(path, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield file
    finally:
        os.close(file)


def read_small_file(path: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """Return the content of a file that is expected to be small."""
    with open_regular_file(path) as file:
        if os.fstat(file).st_size > max_bytes:
            raise OSError(f"{path} is too large")
        return os.read(file, max_bytes)


class TailReader:
    """A file of lines; each call of `read` returns the complete lines that were added since the last one."""

    def __init__(self, path: str, window: int | None = None) -> None:
        """Start with the lines in the last `window` bytes, or with the first line."""
        self.path, self._window = path, window
        self._file_id = (0, 0)
        self._offset = 0
        self._guard = b""
        self.is_complete = True  # whether the first line was among those that were read

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the file was cut or replaced since, so that reading starts over, and the next lines."""
        with open_regular_file(self.path) as file:
            status = os.fstat(file)
            is_same = (status.st_dev, status.st_ino) == self._file_id and status.st_size >= self._offset
            guard = pread(file, GUARD_BYTES, max(0, self._offset - GUARD_BYTES))
            is_reset = not is_same or guard[: len(self._guard)] != self._guard
            start = self._offset
            if is_reset:
                self._file_id = (status.st_dev, status.st_ino)
                start = 0 if self._window is None else max(0, status.st_size - self._window)
                self.is_complete = start == 0
            data = pread(file, status.st_size - start if self._window else CHUNK_BYTES, start)
            begin = data.find(b"\n") + 1 if is_reset and start else 0
            end = data.rfind(b"\n") + 1
            if not end and len(data) == CHUNK_BYTES:  # no line is this long: its beginning is skipped
                end = len(data)
            self._offset = start + end
            self._guard = pread(file, min(GUARD_BYTES, self._offset), max(0, self._offset - GUARD_BYTES))
        return is_reset, data[begin:end].split(b"\n")[:-1]
