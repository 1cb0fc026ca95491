"""Files that are whole or not there, written beside, flushed to disk, then renamed; paths that one process holds."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def atomic_write(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file and put it in place of `path` in one step; on failure nothing changes."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    atomic_write(path, lambda beside: void(beside.write_text(text, encoding="utf-8")))


def void(_: object) -> None:
    """Take a value and return nothing, so that a writer that returns a count can be passed on."""


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder: a file that was renamed into it is there after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def acquire_lock(path: Path, lock: Path) -> IO[str]:
    """Lock a path until the file that is returned is closed; refuse one that another process holds, by its number."""
    while True:
        file = lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise ValueError(f"{path} is in use by process {owner}: wait for it, or choose another folder") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
        file.close()  # its former holder removed the lock between our two calls
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _LOCKS.add(file)
    return file


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a path by a lock beside it, of which nothing is left behind."""
    lock = path.with_name(f".{path.name}.lock")
    with acquire_lock(path, lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _release_after_fork() -> None:
    """A process that is forked holds nothing: it may outlive the one that does."""
    for file in list(_LOCKS):
        file.close()


_LOCKS: weakref.WeakSet[IO[str]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_release_after_fork)
