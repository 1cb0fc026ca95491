"""An exhibit in the shape of the paper's own table: a row for each setting, and a column for each metric."""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev

from manyeyes.papers.comparison import ComparedNumber
from manyeyes.papers.exhibit import Exhibit
from manyeyes.report.table import Table

TERMINAL_WIDTH = 80  # characters
Cell = Callable[[ComparedNumber], str]


def paper_tables(exhibit: Exhibit, compared: list[ComparedNumber], tag: str) -> list[Table]:
    """Return what the paper prints, what was measured, and the differences, in percent; nothing without columns.

    Metrics that the paper does not print are in a table of their own, so that the others have the shape of the paper's.
    """
    measured = f"Measured, % ({tag})" if tag else "Measured, %"
    cells: dict[str, Cell] = {
        "The paper, %": _printed,
        measured: _mean,
        "Measured minus paper (=: agrees)": _difference,
    }
    printed = {number.metric for number in compared if number.printed is not None}
    main = replace(exhibit, columns=tuple(column for column in exhibit.columns if column[1] in printed))
    others = replace(exhibit, columns=tuple(column for column in exhibit.columns if column[1] not in printed))
    tables = [_table(main, compared, caption, cell) for caption, cell in cells.items()]
    tables.append(_table(others, compared, f"{measured}, next to the paper's metrics", _mean))
    return [table for table in tables if any(any(row[1:]) for row in table.rows)]


def paper_csv(exhibit: Exhibit, compared: list[ComparedNumber], tag: str) -> str:
    """Return the same numbers as CSV, with the deviations over seeds, and how the runs differ from the paper's."""
    cells: dict[str, Cell] = {
        "paper": _printed,
        "paper deviation": partial(_printed, deviation=True),
        "measured": _mean,
        "measured deviation": _deviation,
        "difference": partial(_difference, mark=""),
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", "numbers", *(name for name, _ in exhibit.columns), "runs are"])
    tables = {name: _table(exhibit, compared, name, cell) for name, cell in cells.items()}
    for number, row in enumerate(exhibit.rows):
        writer.writerows([row.name, name, *table.rows[number][1:], tag] for name, table in tables.items())
    return text.getvalue()


def _table(exhibit: Exhibit, compared: list[ComparedNumber], caption: str, cell: Cell) -> Table:
    by_cell = {(number.row, number.metric): number for number in compared}

    def cells(row: str) -> Iterator[str]:
        for _, metric in exhibit.columns:
            yield cell(by_cell[row, metric]) if (row, metric) in by_cell else ""

    rows = [[row.name, *cells(row.name)] for row in exhibit.rows]
    return Table(caption, ["setting", *(name for name, _ in exhibit.columns)], rows)


def _printed(number: ComparedNumber, deviation: bool = False) -> str:
    value = number.printed and (number.printed.std if deviation else number.printed.value)
    return "" if value is None else f"{value:.1f}"


def _mean(number: ComparedNumber) -> str:
    return f"{100 * fmean(number.measured):.1f}" if number.measured else ("-" if number.diverged else "")


def _deviation(number: ComparedNumber) -> str:
    return f"{100 * stdev(number.measured):.1f}" if len(number.measured) > 1 else ""


def _difference(number: ComparedNumber, mark: str = "=") -> str:
    if number.difference is None:
        return ""
    return f"{number.difference:+.1f}{mark if number.is_within else ''}"
