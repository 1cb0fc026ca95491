"""How our commands read their options."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from typing import Any, NoReturn

HELP_WIDTH = 100  # characters, whatever the terminal: the help is also kept in a file


class Parser(ArgumentParser):
    """An argument parser whose help ends with an example, and whose complaints are one sentence."""

    def __init__(self, prog: str | None = None, *, epilog: str = "", example: str = "", **options: Any) -> None:
        epilog = "\n\n".join(filter(None, (epilog, example and f"example:\n  {example}")))
        formatter = partial(RawDescriptionHelpFormatter, width=HELP_WIDTH, max_help_position=26)
        super().__init__(prog, epilog=epilog, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")
