"""Worker processes: forked from this one, so that they see all of its memory; they communicate through a pipe."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from manyeyes.engines.base import retain_freed_memory

HANGUP = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # not on Windows
SIGNALS = {signal.SIGINT, signal.SIGTERM, *HANGUP}
WATCHDOG_SECONDS = 0.5  # between two checks of a worker whether its parent is alive


def unsupported_machine(device: torch.device) -> str | None:
    """Return what prevents workers from being forked here and from training on a device; None where they can."""
    if device.type != "cpu":
        return f"device={device}, because it trains on the CPU"
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system, which cannot fork a process"
    if sys.platform == "darwin":
        return "macOS, whose libraries do not survive a fork"
    if torch.cuda.is_initialized():
        return "a process that has used a GPU, because PyTorch's gradients then do not survive a fork"
    return None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process of one thread that answers every message with the result of `work`, or with the error it raised."""

    def __init__(self, work: Callable[[Any], Any], siblings: Iterable[Worker]) -> None:
        self._pipe, child_pipe = multiprocessing.Pipe()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a child that still has our handlers gets none
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    for worker in (self, *siblings):  # their pipes, open here, would outlive the parent
                        worker._pipe.close()
                    _worker_main(work, child_pipe, parent)
                finally:
                    os._exit(0)  # without the parent's exit handlers and finally blocks
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child_pipe.close()

    def send(self, message: bytes) -> None:
        with suppress(ConnectionError):  # a worker that has died sends no answer, which `receive` reports
            self._pipe.send_bytes(message)

    def receive(self) -> Any:
        """Return the answer to a message, or None if the process died first; its error is raised here."""
        try:
            succeeded, answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        if succeeded:
            return answer
        raise answer

    def stop(self) -> str:
        """End the process if it has not ended; return how it ended."""
        self._pipe.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):  # a parent that ignores SIGCHLD gets no exit codes
            return "exit code unknown"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def serialize(message: Any) -> bytes:
    """Pickle with every tensor as an array: PyTorch's own way takes a file descriptor for each, or a whole storage."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()


def pickle_error(message: Any) -> str | None:
    """Return why an object cannot be pickled; None where it can."""
    try:
        serialize(message)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    return None


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (torch.tensor, (obj.detach().numpy(),)) if isinstance(obj, Tensor) else NotImplemented


def _worker_main(work: Callable[[Any], Any], pipe: Connection, parent: int) -> None:
    """Answer messages until the parent has ended."""
    torch.set_num_threads(1)  # before anything else: the threads of OpenMP were not forked
    retain_freed_memory()
    for number in (signal.SIGINT, *HANGUP):  # they reach the parent too, which decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    devnull = open(os.devnull, "r+")  # noqa: SIM115
    for standard_stream in range(3):
        os.dup2(devnull.fileno(), standard_stream)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    with redirect_stdout(devnull), redirect_stderr(devnull):
        while True:
            pipe.send_bytes(_answer(work, pipe.recv_bytes()))


def _answer(work: Callable[[Any], Any], message: bytes) -> bytes:
    try:
        return serialize((True, work(pickle.loads(message))))
    except BaseException as error:
        note = f"In a worker:\n{traceback.format_exc()}"
        try:
            sent = pickle.loads(serialize(error))
        except Exception:  # not every error can be pickled
            sent = RuntimeError(f"{type(error).__name__}: {error}")
        sent.add_note(note)
        return serialize((False, sent))


def _watch_parent(parent: int) -> None:
    """End this process soon after its parent has ended, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(WATCHDOG_SECONDS)
    os._exit(0)
