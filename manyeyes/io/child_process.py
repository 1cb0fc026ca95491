"""Functions that are called in a process of their own, which is ended if it gives no sign of life for too long."""

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

SIGN_SECONDS = 0.5  # at least, between two signs of life

SignOfLife = Callable[[], None]


def call_in_process(context: BaseContext, max_silent_seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Return what `function(*args, sign_of_life)` returns in a new process; what it raises is raised here.

    Raise TimeoutError if it has neither answered nor called `sign_of_life()` for so long: a library may loop for ever in
    code that no thread can interrupt. Raise ChildProcessError if the process ended without an answer.
    """
    receiver, sender = context.Pipe(duplex=False)
    process: Any = context.Process(target=_answer, args=(sender, function, args), daemon=True)  # type: ignore[attr-defined]
    try:
        process.start()
        sender.close()
        answer = None
        while answer is None:
            if not receiver.poll(max_silent_seconds):
                raise TimeoutError(f"no answer for {max_silent_seconds:g} s")
            answer = receiver.recv()
    except EOFError:
        raise ChildProcessError("its process ended without an answer") from None
    finally:
        receiver.close()
        if process.pid is not None:
            process.kill()
            process.join()
    is_result, value = answer
    if is_result:
        return value
    raise value


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    last_sign = time.monotonic()

    def sign_of_life() -> None:
        nonlocal last_sign
        if time.monotonic() - last_sign > SIGN_SECONDS:
            last_sign = time.monotonic()
            sender.send(None)

    try:
        answer = True, function(*args, sign_of_life)
    except Exception as error:
        answer = False, error
    sender.send(answer)
