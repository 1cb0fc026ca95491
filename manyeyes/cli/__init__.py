"""The command `manyeyes`: one table of commands, each a module with `main(argv) -> int`."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import cast

from manyeyes import __version__
from manyeyes.cli.packaged_help import packaged_help
from manyeyes.cli.streams import STANDARD_OUTPUT, discard_output, interrupts_raise, prepare_streams
from manyeyes.io.packages import optional_packages
from manyeyes.io.steps import shows_progress

COMMANDS = {  # modules of this package, and one line of help for each
    "run": "train; settings and sweeps as in Hydra",
    "reproduce": "run a table or figure of a paper and compare its numbers (reproduce --list)",
    "flair": "FLAIR's federated benchmark, with the settings of its Flower baseline",
    "fedper": "FedPer against FedAvg, with the settings of its Flower baseline",
    "report": "runs on one page: curves, classes, users, data, privacy, speed",
    "predict": "predict the classes of photos with a trained model",
    "export": "a trained model as ONNX, TorchScript or weights, with a model card",
    "users": "every user's own result in some runs: a table and a chart",
    "data": "prepare datasets, inspect them, write synthetic ones",
    "privacy": "plan differential privacy, or audit our own training (privacy plan, privacy audit)",
    "flower": "the same training on separate clients, with Flower",
    "estimate": "what a run will take: seconds, bytes, memory",
    "dashboard": "a live page that follows runs and compares them",
    "demo": "compare four algorithms on synthetic images, in two minutes on a CPU",
    "doctor": "what this machine has and lacks, and which engine it will use; with RUN, check the files of a run",
    "completion": "tab completion for bash, zsh or fish",
}
FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130  # exit codes, as docs/formats.md has them
QUICK_COMMANDS = ("dashboard", "completion")  # which do not load PyTorch
MAX_CHARACTERS, MAX_NAME_CHARACTERS = 1200, 80  # of an error that is printed, and of a name in it that is too long
USAGE = """usage: manyeyes COMMAND ...

Federated visual classification: images train one model and stay with their owners.

{commands}

  manyeyes COMMAND --help
  manyeyes run algorithm=fedavgm rounds=20
  manyeyes package.module:function ...   a command of your own
  manyeyes --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake is one sentence on standard error, without a traceback."""
    prepare_streams()
    try:
        with optional_packages():
            code = _run(list(sys.argv[1:] if argv is None else argv) or ["--help"])
            sys.stdout.flush()
            return code
    except ValueError as error:
        return _print_error(str(error), USAGE_ERROR, once=True)
    except RuntimeError as error:
        return _handle_runtime_error(error)
    except BrokenPipeError:  # what reads our output has ended, as `head` does
        discard_output()
        return 0
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            discard_output()
        name, reason = str(error.filename or "a file"), error.strerror or str(error)
        if error.errno == errno.ENAMETOOLONG:
            name, reason = f"{name[:MAX_NAME_CHARACTERS]}...", f"{reason}: choose a shorter name"
        return _print_error(f"{name}: {reason}", FAILED)
    except KeyboardInterrupt as stopped:
        return _print_error(str(stopped) or "stopped", INTERRUPTED, once=True)


def _run(argv: list[str]) -> int:
    name, *rest = argv
    if name in ("-h", "--help", "help"):
        print(USAGE.format(commands="\n".join(f"  {command:<11}{text}" for command, text in COMMANDS.items())))
        return 0
    if name == "--version":
        print(f"manyeyes {__version__}")
        return 0
    if name not in COMMANDS and ":" not in name:
        from manyeyes.core.registry import suggestion

        choices = f"choose {', '.join(COMMANDS)}, or package.module:function."
        return _print_error(f"Unknown command {name!r}{suggestion(name, COMMANDS)}: {choices}", USAGE_ERROR)
    if not {"-h", "--help"}.isdisjoint(rest) and (text := packaged_help(argv)):
        print(text)
        return 0
    function = command(name)
    interrupts_raise()
    return function(rest)


def command(name: str) -> Callable[[list[str]], int]:
    """Return the function of a command, or a user's own by import path; its module is imported when it is needed."""
    if name not in COMMANDS:
        from manyeyes.core.registry import import_object

        return cast(Callable[[list[str]], int], import_object(name, "command"))
    with _loading(name):
        module = import_module(f"manyeyes.cli.{name}")
    return cast(Callable[[list[str]], int], module.main)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Say at once that a command loads PyTorch, which takes seconds; on a terminal, until it is loaded."""
    if name in QUICK_COMMANDS or "torch" in sys.modules or not shows_progress():
        yield
        return
    is_terminal = sys.stderr.isatty()
    print(f"manyeyes {name}: loading PyTorch", file=sys.stderr, end=" ..." if is_terminal else "\n", flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K" if is_terminal else "", end="", file=sys.stderr, flush=True)


def _handle_runtime_error(error: RuntimeError) -> int:
    """Print an error that ends a run as it may; any other is a defect, and raised."""
    from manyeyes.core.state import DivergenceError
    from manyeyes.engines.distributed.process_group import PeerLostError

    if not isinstance(error, DivergenceError | PeerLostError):
        raise error
    return _print_error(str(error), FAILED, once=isinstance(error, DivergenceError))


def _print_error(sentence: str, code: int, once: bool = False) -> int:
    """Print an error; of several processes of one run, `once` lets only the first print what all of them would."""
    if not once or os.environ.get("RANK", "0") == "0":
        print(f"manyeyes: {one_line(sentence)}", file=sys.stderr)
    return code


def one_line(sentence: str) -> str:
    """Return a sentence safe to print: it may quote a file that has control characters, or very long values."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in sentence)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 2 :]}"
