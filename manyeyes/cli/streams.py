"""Standard output and standard error that are closed, full or no longer read: they do not end what is running."""

import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

STANDARD_OUTPUT = "standard output"  # the file name in its errors


class _Output(io.RawIOBase):
    """A standard stream whose errors have a name; without one, what cannot be written is dropped."""

    def __init__(self, number: int, name: str = "") -> None:
        self._number, self._name = number, name

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return os.write(self._number, data)
        except OSError as error:
            if not self._name:
                return len(data)
            raise OSError(error.errno, os.strerror(error.errno or 0), self._name) from None


def prepare_streams() -> None:
    """Open /dev/null in place of closed streams, or files would get their numbers; let no message end the command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if sys.stdout is sys.__stdout__:  # else it has been replaced, as tests do
        sys.stdout = _text_stream(sys.stdout, STANDARD_OUTPUT)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text_stream(sys.stderr, "")


def _text_stream(stream: Any, name: str) -> io.TextIOWrapper:
    output: Any = _Output(stream.fileno(), name)
    buffer = output if stream.write_through else io.BufferedWriter(output)
    options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, **options)


def discard_output() -> None:
    """Drop what standard output still holds, which the interpreter would try to write again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def interrupts_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, after the modules of a command were imported."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
