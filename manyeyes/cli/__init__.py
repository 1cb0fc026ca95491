"""The command `manyeyes`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from manyeyes import __version__

USAGE = """usage: manyeyes COMMAND ...

Federated visual classification: many people's photos train one model, and the photos stay where they are.

  run        train; settings and sweeps in Hydra's manner (manyeyes run --help)
  reproduce  a table or figure of a paper, its numbers beside ours (manyeyes reproduce --list)
  flair      FLAIR's federated benchmark, with the words of its baseline (manyeyes flair --help)
  fedper     FedPer against FedAvg, with the words of its baseline (manyeyes fedper --help)
  report     runs on one page: curves, classes, users, data, privacy, speed (manyeyes report --help)
  users      every user's own result in some runs: a table and a picture (manyeyes users --help)
  data       prepare datasets, show what is in them, make stand-ins (manyeyes data --help)
  privacy    plan differential privacy, or attack our own to see it kept (manyeyes privacy plan --help, audit --help)
  flower     federated training on separate clients, with Flower (manyeyes flower --help)
  plan       what a run would take: seconds, bytes, memory (manyeyes plan --help)
  bench      speed here, side by side with a plain loop and installed peers (manyeyes bench --help)
  board      a page that follows runs while they go, and compares them (manyeyes board --help)
  demo       compare four algorithms on a small world, in two minutes on a CPU
  doctor     what this machine has, which engine it will use, what is missing and how to get it

  manyeyes --version
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what a person did wrong is one sentence on standard error, without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if words[0] == "--version":
        print(f"manyeyes {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        return _print_error(f"{words[0]!r} is no command: choose {', '.join(COMMANDS)}", 2)
    try:
        return command(words[1:])
    except ValueError as error:
        return _print_error(str(error), 1, once=True)
    except RuntimeError as error:
        from manyeyes.core.state import DivergenceError
        from manyeyes.engines.distributed import PeerLostError

        if not isinstance(error, DivergenceError | PeerLostError):
            raise
        return _print_error(str(error), 1, once=isinstance(error, DivergenceError))
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _print_error(f"{error.filename or 'a file'}: {error.strerror or error}", 1)
    except KeyboardInterrupt as stopped:
        return _print_error(str(stopped) or "stopped", 130, once=True)


def _run(words: list[str]) -> int:
    from manyeyes.config.run import run

    return run(words)


def _reproduce(words: list[str]) -> int:
    from manyeyes.cli.reproduce import reproduce

    return reproduce(words)


def _flair(words: list[str]) -> int:
    from manyeyes.cli.flair import flair

    return flair(words)


def _fedper(words: list[str]) -> int:
    from manyeyes.cli.fedper import fedper

    return fedper(words)


def _report(words: list[str]) -> int:
    from manyeyes.cli.report import report

    return report(words)


def _users(words: list[str]) -> int:
    from manyeyes.cli.users import users

    return users(words)


def _data(words: list[str]) -> int:
    from manyeyes.cli.data import data

    return data(words)


def _bench(words: list[str]) -> int:
    from benchmarks.rounds.command import bench

    return bench(words)


def _privacy(words: list[str]) -> int:
    from manyeyes.cli.privacy import privacy

    return privacy(words)


def _board(words: list[str]) -> int:
    from manyeyes.cli.dashboard import board

    return board(words)


def _flower(words: list[str]) -> int:
    try:
        from manyeyes.cli.flower import main as flower
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'manyeyes[flower]'") from None
    return flower(words)


def _plan(words: list[str]) -> int:
    from manyeyes.cli.estimate import plan

    return plan(words)


def _demo(words: list[str]) -> int:
    from manyeyes.cli.demo import demo

    return demo(words)


def _doctor(words: list[str]) -> int:
    from manyeyes.cli.doctor import doctor

    return doctor(words)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "reproduce": _reproduce,
    "flair": _flair,
    "fedper": _fedper,
    "report": _report,
    "users": _users,
    "data": _data,
    "privacy": _privacy,
    "flower": _flower,
    "plan": _plan,
    "bench": _bench,
    "board": _board,
    "demo": _demo,
    "doctor": _doctor,
}


def _print_error(sentence: str, code: int, once: bool = False) -> int:
    """Say what is wrong; of several processes of one training only the first says what all of them would."""
    if not once or os.environ.get("RANK", "0") == "0":
        print(f"manyeyes: {sentence}", file=sys.stderr)
    return code
