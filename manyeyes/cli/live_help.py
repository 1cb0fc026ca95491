"""The help as every command prints it, which `make reference` packages."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from manyeyes.cli import COMMANDS, command
from manyeyes.cli.packaged_help import FILE, HEADING
from manyeyes.config.groups import GROUPS

SUBCOMMANDS = re.compile(r"^  \{([\w,]+)\}$", re.MULTILINE)


def live_help() -> Iterator[tuple[str, str]]:
    """Yield the arguments and the help of every command, subcommand and choice of `manyeyes run`, as they print it."""
    choices = [f"run {group.name}={choice}" for group in GROUPS.values() for choice in group.choices()]
    remaining = [*COMMANDS, *choices]
    while remaining:
        arguments = remaining.pop(0)
        text = _printed_help(arguments.split())
        names = [name for match in SUBCOMMANDS.findall(text) for name in match.split(",")]
        remaining = [*(f"{arguments} {name}" for name in names), *remaining]
        yield arguments, text.strip("\n")


def _printed_help(argv: list[str]) -> str:
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        command(argv[0])([*argv[1:], "--help"])
    return out.getvalue()


def write_help() -> None:
    """Write the packaged help, in the checkout that this module is in."""
    text = "".join(f"{HEADING}{arguments}\n{content}\n\n" for arguments, content in live_help())
    Path(__file__).with_name(FILE).write_text(text, "utf-8")
