"""Locks: a path that one process uses at a time."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def acquire_lock(path: Path, lock: Path) -> IO[str]:
    """Lock `path` until the returned file is closed; raise ValueError with the process id if another one holds it."""
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
    """Hold a path with a lock file in the same folder, which is removed afterwards."""
    lock = path.with_name(f".{path.name}.lock")
    with acquire_lock(path, lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _release_after_fork() -> None:
    """Close the locks in a forked process, which may outlive the one that holds them."""
    for file in list(_LOCKS):
        file.close()


_LOCKS: weakref.WeakSet[IO[str]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_release_after_fork)
