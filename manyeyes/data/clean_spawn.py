"""Processes that are spawned without importing the script that starts them."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from manyeyes.io.files import errors_that_name

SHARED_MEMORY = Path("/dev/shm")  # where Linux has the locks of a pool, which may be full

_MAIN_LOCK = threading.Lock()  # otherwise two threads might restore the module that the other has hidden


class CleanSpawnProcess(SpawnProcess):
    def start(self) -> None:
        with without_main():
            super().start()


class CleanSpawnContext(SpawnContext):
    """Python's `spawn` without running the script again in each process, even if it has no `__name__` guard.

    What is sent to a process must be importable: a class of the script itself cannot be pickled.
    """

    Process = CleanSpawnProcess


def brief_context() -> BaseContext:
    """Return how to start a process for a single call without PyTorch: forked in milliseconds, where that is safe."""
    can_fork = "fork" in get_all_start_methods() and sys.platform != "darwin"
    return get_context("fork") if can_fork else CleanSpawnContext()


def process_pool(
    num_processes: int, initializer: Callable[..., object] | None = None, args: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """Return a pool of processes that are spawned without the script."""
    with errors_that_name(SHARED_MEMORY):
        return ProcessPoolExecutor(num_processes, CleanSpawnContext(), initializer, args)


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the script from new processes and from pickle."""
    with _MAIN_LOCK:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
