"""Trainings in processes of their own, side by side, none of which outlives this one."""

from __future__ import annotations

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
Train = Callable[[Sequence[str]], str]  # from words of `manyeyes run` to what went wrong; empty where nothing did
T = TypeVar("T")


def run_parallel(works: Sequence[Callable[[Train], T]], most: int) -> list[T]:
    """What each work returns, so many at a time; each is given a function that trains in a process.

    Ctrl-C or SIGTERM: trainings under way finish their round and save themselves, others are not begun; once more, and
    they stop at once.
    """
    trainings = ProcessPool()
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with ThreadPoolExecutor(most) as pool:
            try:
                return [each.result() for each in [pool.submit(work, trainings.train) for work in works]]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                trainings.end()
                raise
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(eq=False)
class ProcessPool:
    """Those under way."""

    running: list[subprocess.Popen[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False

    def train(self, words: Sequence[str]) -> str:
        with self.lock:
            if self.over:
                return "it was not begun"
            process = subprocess.Popen(
                [*COMMAND, *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # where Ctrl-C comes from us alone, and once
            )
            self.running.append(process)
        _, told = process.communicate()
        with self.lock:
            self.running.remove(process)
        if not process.returncode:
            return ""
        return (told.strip().splitlines() or [f"it ended with code {process.returncode}"])[-1].removeprefix(
            "manyeyes: "
        )

    def end(self) -> None:
        with self.lock:
            self.over = True
            running = list(self.running)
        if running:
            print("\nFinishing the rounds under way, then saving; press Ctrl-C again to stop at once.", file=sys.stderr)
        try:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
