"""The command `manyeyes`, also as `python -m manyeyes`."""

import atexit
import os
import signal
import sys
from contextlib import suppress


def main() -> int:
    """Run the command. Until it has been imported, Ctrl-C ends the process without a traceback."""
    codes: list[int] = []
    atexit.register(_end_process, codes)  # the first to register is the last to be called
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from manyeyes.cli import main as run_command

    code = run_command()
    if "RANK" in os.environ:  # of torchrun
        from manyeyes.engines.distributed.process_group import shutdown

        shutdown(code)
    codes.append(code)
    return code


def _end_process(codes: list[int]) -> None:
    """End the process of a command that has returned, before native libraries destroy their static objects.

    With pandas installed, a thread of pyarrow is sometimes still there then, and aborts a process whose work is done.
    """
    if not codes:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(codes[0])


if __name__ == "__main__":
    sys.exit(main())
