"""Worker processes: forked from this one, so that they see all that it has made; told and heard through a pipe."""

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

from manyeyes.engines.malloc import retain_freed_memory

SIGNALS = {signal.SIGINT, signal.SIGTERM}
WATCHDOG_SECONDS = 0.5  # seconds between two looks of a working process at whether its parent lives


def available() -> str | None:
    """Why no workers can be forked here; None where they can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system cannot fork a process"
    if sys.platform == "darwin":
        return "the libraries of macOS do not survive a fork"
    if torch.cuda.is_initialized():
        return "this process has used a GPU, and PyTorch's gradients do not survive a fork then"
    return None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process of one thread that answers every message with what `work` makes of it, or with the error it raised."""

    def __init__(self, work: Callable[[Any], Any], siblings: Iterable[Worker]) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none comes to a child that has our handlers still
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    for one in (self, *siblings):  # held open here, they would outlive the parent
                        one._pipe.close()
                    _worker_main(work, theirs, parent)
                finally:
                    os._exit(0)  # nothing that the parent has yet to do is done here
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def send(self, message: bytes) -> None:
        with suppress(ConnectionError):  # of one that has died nothing will be heard
            self._pipe.send_bytes(message)

    def receive(self) -> Any:
        """The answer to a message, or None if the process died first; its error is raised here."""
        try:
            good, answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        if good:
            return answer
        raise answer

    def stop(self) -> str:
        """End the process, if it has not; how it ended."""
        self._pipe.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):  # whoever started us wants no news of children (SIGCHLD)
            return "unseen"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def serialize(thing: Any) -> bytes:
    """Pickled with every tensor as an array: PyTorch's own way takes a file descriptor for each, or a whole storage."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(thing)
    return buffer.getvalue()


def pickle_error(thing: Any) -> str | None:
    """Why it cannot be sent to a worker; None where it can."""
    try:
        serialize(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return (
            f"a part of the algorithm cannot be sent to its workers ({error}): its class must be at the top of a module"
        )
    return None


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        return (torch.tensor, (thing.detach().numpy(),)) if isinstance(thing, Tensor) else NotImplemented


def _worker_main(work: Callable[[Any], Any], pipe: Connection, parent: int) -> None:
    """Answer messages until the parent is gone."""
    torch.set_num_threads(1)  # before anything else: the threads of OpenMP have not come along
    retain_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    nothing = open(os.devnull, "r+")  # noqa: SIM115
    for terminal in range(3):
        os.dup2(nothing.fileno(), terminal)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    with redirect_stdout(nothing), redirect_stderr(nothing):
        while True:
            pipe.send_bytes(_answer(work, pipe.recv_bytes()))


def _answer(work: Callable[[Any], Any], message: bytes) -> bytes:
    try:
        return serialize((True, work(pickle.loads(message))))
    except BaseException as error:
        where = f"In a worker:\n{traceback.format_exc()}"
        try:
            sent = pickle.loads(serialize(error))
        except Exception:  # not every error can be sent
            sent = RuntimeError(f"{type(error).__name__}: {error}")
        sent.add_note(where)
        return serialize((False, sent))


def _watch_parent(parent: int) -> None:
    """End this process, whatever it does, soon after its parent has."""
    while os.getppid() == parent:
        time.sleep(WATCHDOG_SECONDS)
    os._exit(0)
