"""The papers' own text, if it is available."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session")
def text() -> Callable[[str], str]:
    """Return a function that reads a document that the project was started from; tests skip without it."""

    def read(name: str) -> str:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs {path}, which is not part of the project")
        return path.read_text(encoding="utf-8")

    return read


@pytest.fixture(scope="session")
def table(text: Callable[[str], str]) -> Callable[[str, str], list[list[str]]]:
    """Return a function that reads the cells of a table, by its document and the start of its caption."""

    def lines(name: str, caption: str) -> list[list[str]]:
        _, separator, below = text(name).partition(f"\n{caption}")
        assert separator, f"{name} has no {caption!r}"
        rows = below.split("\n\n")[1]
        return [[cell.strip() for cell in line.split("\t")] for line in rows.splitlines()]

    return lines


@pytest.fixture(scope="session")
def says(text: Callable[[str], str]) -> Callable[[str, str, float], bool]:
    """Return a function that tells whether a document has a quote, and the quote the number."""

    def check(name: str, source: str, value: float) -> bool:
        quote = source.partition('"')[2].rstrip('"')
        plain = " ".join(text(name).replace("*", "").split())
        return quote in plain and f"{value:g}" in re.findall(r"\d+(?:\.\d+)?", quote.replace(",", ""))

    return check
