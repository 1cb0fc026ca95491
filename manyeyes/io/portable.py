"""Functions of POSIX that Windows lacks, with the next best thing there."""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_POSITION = threading.Lock()


def seek_and_read(file: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes at an offset of an open file, as `os.pread`."""
    with _POSITION:  # which all threads share
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)


def seek_and_fill(file: int, buffers: Sequence[Any], offset: int) -> int:
    """Fill buffers with the bytes at an offset of an open file, and return their number, as `os.preadv`."""
    data = memoryview(seek_and_read(file, sum(memoryview(buffer).nbytes for buffer in buffers), offset))
    start = 0
    for buffer in buffers:
        target = memoryview(buffer).cast("B")[: len(data) - start]
        target[:] = data[start : start + len(target)]
        start += len(target)
    return start


pread: Callable[[int, int, int], bytes] = getattr(os, "pread", seek_and_read)
preadv: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", seek_and_fill)
CAN_SYNC_FOLDERS = hasattr(os, "O_DIRECTORY")
OPEN_FLAGS = os.O_RDONLY  # for a file that another process writes: no link is followed, and no pipe waited for
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    OPEN_FLAGS |= getattr(os, _flag, 0)


def lock_file(file: IO[bytes]) -> None:
    """Lock an open file until it is closed; raise BlockingIOError if another process has locked it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    lock: Any = msvcrt  # no other system has its functions
    file.seek(2**30)  # behind its content, which others may read
    try:
        lock.locking(file.fileno(), lock.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(*error.args) from error


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Call a function in every process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def c_library() -> Any:
    """Return the C library of this process; None where it has no name of its own."""
    try:
        return ctypes.CDLL(None)
    except (TypeError, OSError):
        return None
