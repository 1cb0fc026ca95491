"""Runs in processes of their own, several at a time, none of which outlives this process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

COMMAND = (sys.executable, "-m", "manyeyes", "run")
STOP_MESSAGE = "\nFinishing the current rounds, then saving; press Ctrl-C again to stop at once."
Train = Callable[[Sequence[str]], str]  # from arguments of `manyeyes run` to an error message; empty without an error
T = TypeVar("T")


def run_parallel(tasks: Sequence[Callable[[Train], T]], max_processes: int) -> list[T]:
    """Return the result of each task, running up to `max_processes` at a time.

    Each task receives a function that trains in a process. After Ctrl-C or SIGTERM, current runs finish their round
    and save, and no others start; after a second one, they stop at once.
    """
    pool = ProcessPool()
    previous_handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with ThreadPoolExecutor(max_processes) as threads:
            try:
                return [future.result() for future in [threads.submit(task, pool.train) for task in tasks]]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                pool.stop()
                raise
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@dataclass(eq=False)
class ProcessPool:
    """The processes that are training."""

    running: list[subprocess.Popen[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_stopped: bool = False

    def train(self, args: Sequence[str]) -> str:
        """Run `manyeyes run` in a process and return its error message; empty without an error."""
        with self.lock:
            if self.is_stopped:
                return "the run was not started"
            process = subprocess.Popen(
                [*COMMAND, *args],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that Ctrl-C reaches it only through `stop`, and once
            )
            self.running.append(process)
        _, stderr = process.communicate()
        with self.lock:
            self.running.remove(process)
        if not process.returncode:
            return ""
        lines = stderr.strip().splitlines() or [f"the process ended with code {process.returncode}"]
        return lines[-1].removeprefix("manyeyes: ")

    def stop(self) -> None:
        """Ask all processes to finish their round and save; kill them if this is interrupted."""
        with self.lock:
            self.is_stopped = True
            running = list(self.running)
        if running:
            print(STOP_MESSAGE, file=sys.stderr)
        try:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
