"""Atomic writes: a file is complete or not there; it is written to a temporary file, flushed and renamed."""

import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file and rename it to `path`; if it fails, `path` keeps its old content."""
    temp_path = path.with_name(f".{path.name}.writing")
    try:
        write(temp_path)
        with temp_path.open("rb") as file:
            os.fsync(file.fileno())
        temp_path.replace(path)
    except BaseException:
        temp_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_bytes(data))


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder, so that a file renamed into it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
