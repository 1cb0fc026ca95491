"""The command `manyeyes`, also as `python -m manyeyes`."""

import os
import signal
import sys


def main() -> int:
    """Run the command. Until it has been imported, Ctrl-C ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from manyeyes.cli import main as run_command

    code = run_command()
    if "RANK" in os.environ:  # of torchrun
        from manyeyes.engines.distributed.process_group import shutdown

        shutdown(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
