"""Atomic writes: a file is complete or not there; it is written to a temporary file, flushed and renamed."""

import errno
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from manyeyes.io.portable import CAN_SYNC_FOLDERS, after_fork_in_child, lock_file

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file and rename it to `path`; if it fails, `path` keeps its old content."""
    temp_path = path.with_name(f".{path.name}.writing")
    with errors_that_name(path):
        try:
            write(temp_path)
            with temp_path.open("rb") as file:
                os.fsync(file.fileno())
            temp_path.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error says more
                temp_path.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def errors_that_name(path: Path) -> Iterator[None]:
    """Give errors of the operating system the name of a file: those of writing and flushing have none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to a file without a buffer, which may take only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_bytes(data))


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder, so that a file renamed into it survives a power loss."""
    if not CAN_SYNC_FOLDERS:
        return
    with errors_that_name(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and those above it, so that they survive a power loss; the mode is that of a new folder."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


@contextmanager
def owner_only() -> Iterator[None]:
    """Create files and folders that only their owner can read, also those that other libraries create."""
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)


def acquire_lock(path: Path, lock: Path) -> IO[bytes]:
    """Lock `path` until the returned file is closed; raise ValueError with the process id if another one holds it."""
    while True:
        file = lock.open("a+b", buffering=0)
        try:
            lock_file(file)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "unknown"
            file.close()
            raise ValueError(f"{path} is in use by process {owner}: wait for it, or choose another folder") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
        file.close()  # its former holder removed the lock between our two calls
    try:
        with errors_that_name(lock):
            file.truncate(0)
            write_all(file, str(os.getpid()).encode())
    except OSError:
        file.close()
        raise
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
            with suppress(OSError):  # the next one to lock it uses the same file
                lock.unlink(missing_ok=True)


def _release_after_fork() -> None:
    """Close the locks in a forked process, which may outlive the one that holds them."""
    for file in list(_LOCKS):
        file.close()


_LOCKS: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
after_fork_in_child(_release_after_fork)
