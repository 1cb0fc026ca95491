"""Processes that are started afresh and never import the script that starts them."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType

LOCK = threading.Lock()  # or two threads might put back what the other has hidden


class Process(SpawnProcess):
    def start(self) -> None:
        with without_main():
            super().start()


class CleanSpawnContext(SpawnContext):
    """Python's `spawn`, which runs a script without `if __name__ == "__main__":` again in each process, without that.

    What is sent to a process must be importable: a class of the script itself is refused when it is pickled.
    """

    Process = Process


@contextmanager
def without_main() -> Iterator[None]:
    """For as long as it lasts, nothing is known of the script, neither to a new process nor to pickle."""
    with LOCK:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
