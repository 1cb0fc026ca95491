"""A table, for a page, for a Markdown file and for a terminal."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from manyeyes.report.text import escape, format_value, printable
from manyeyes.report.theme import LIGHT

MAX_SHORT_NAME = 32  # characters of a row's heading that does not wrap
TERMINAL_WIDTH = 100  # characters
NUMBER = re.compile(r"[-+±~ε]? ?[\d.]|never|not finite")  # how the cells of a column of numbers begin


T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of a row is its heading."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_prose: bool = False  # whether cells are text, which wraps, and not numbers, which are aligned
    best_row: int | None = None  # that is marked
    colors: Sequence[int] = ()  # of rows: those of their series in charts

    def html(self) -> str:
        classes = ["", *(' class="text"' if is_text else "" for is_text in self._are_text())]
        header = "".join(
            f'<th scope="col"{style}>{escape(cell)}</th>' if cell else "<td></td>"
            for cell, style in zip(self.header, classes, strict=True)
        )
        rows = "".join(self._row_html(number, row, classes) for number, row in enumerate(self.rows))
        caption, style = escape(self.caption), ' class="prose"' if self.is_prose else ""
        # A table that is wider than a phone scrolls, also with the keyboard.
        return (
            f'<div class="wide" role="region" tabindex="0" aria-label="{caption}"><table{style}>'
            f"<caption><span>{caption}</span></caption><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row_html(self, number: int, row: Sequence[str], classes: Sequence[str]) -> str:
        heading, *cells = row
        swatch = f'<i class="dot me-c{self.colors[number] % len(LIGHT.series)}"></i>' if self.colors else ""
        mark, style = (" <b>best</b>", ' class="best"') if number == self.best_row else ("", "")
        short = ' class="short"' if len(heading) <= MAX_SHORT_NAME else ""
        data = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(cells, classes[1:], strict=True))
        return f'<tr{style}><th scope="row"{short}>{swatch}{escape(heading)}{mark}</th>{data}</tr>'

    def _are_text(self) -> list[bool]:
        """Return of each column but the first whether most of its cells are no numbers."""
        columns = [[row[i] for row in self.rows if row[i]] for i in range(1, len(self.header))]
        return [2 * sum(not NUMBER.match(cell) for cell in column) > len(column) for column in columns]

    def transposed(self) -> "Table":
        header, *rows = zip(self.header, *self.rows, strict=True)
        return replace(self, header=header, rows=rows)

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "".join(f"| {' | '.join(map(printable, cells))} |\n" for cells in lines)

    def terminal(self, width: int = TERMINAL_WIDTH) -> str:
        has_header = any(self.header)
        is_aligned = has_header and not self.is_prose
        table = TerminalTable(title=Text(printable(self.caption)), title_justify="left", show_header=has_header)
        for number, name in enumerate(self.header):
            table.add_column(
                Text(printable(name)), justify="right" if number and is_aligned else "left", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console = Console(file=io.StringIO(), width=width)
        with console.capture() as capture:
            console.print(table)
        return capture.get().rstrip("\n")


def table_of(caption: str, items: Iterable[tuple[str, T]], columns: Mapping[str, Callable[[T], object]]) -> Table:
    """Return a table with a row for each item: its name and its cells, in which None is empty."""
    rows = [[name, *(_format(cell(item)) for cell in columns.values())] for name, item in items]
    return Table(caption, ["", *columns], rows)


def _format(cell: object) -> str:
    if isinstance(cell, int | float | np.integer):
        return format_value(float(cell))
    return "" if cell is None else str(cell)
