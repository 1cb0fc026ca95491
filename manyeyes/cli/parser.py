"""How our commands read their options."""

from argparse import ArgumentParser
from typing import NoReturn


class Parser(ArgumentParser):
    """An argument parser whose complaints are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")
