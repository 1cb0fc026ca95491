"""The help of every command, kept in a file, so that it is printed without loading what the command needs.

`make reference` writes the file from the live help; a test compares the two.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

FILE = "help.txt"
HEADING = "$ manyeyes "  # before the arguments of each help


@cache
def all_help() -> dict[str, str]:
    """Return the help by the arguments before `--help`, such as "data prepare" and "run algorithm=fedvc"."""
    text = files("manyeyes.cli").joinpath(FILE).read_text("utf-8")
    sections = (section.partition("\n") for section in f"\n{text}".split(f"\n{HEADING}")[1:])
    return {arguments: content.rstrip("\n") for arguments, _, content in sections}


def packaged_help(argv: Sequence[str]) -> str:
    """Return the help that these arguments ask for; empty if the file does not have it, as of a user's component."""
    return all_help().get(" ".join(arg for arg in argv if not arg.startswith("-")), "")
