"""Tables: a CSV by row, with the line of each row for messages, or by column; checking and writing one."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyeyes.io.parsing import named_if_damaged

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 26  # no row may be longer, and a landmark's row has all its images


def check_columns(
    name: object, header: Sequence[str], required: Sequence[str], optional: Sequence[str] | None = None
) -> None:
    """Raise ValueError unless a table has the required columns and, if optional ones are given, no others."""
    known = (*required, *(header if optional is None else optional))
    if unknown := [column for column in header if column not in known]:
        raise ValueError(f"{name} has a column {unknown[0]!r}: it may have {', '.join(known)}")
    if missing := [column for column in required if column not in header]:
        columns = ", ".join(header) or "none"
        raise ValueError(f"{name} has no column {missing[0]!r}, only {columns}: give the right file")


def csv_rows(
    name: object, lines: Iterable[str], required: Sequence[str], optional: Sequence[str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the line of each row of a CSV, for messages, and its cells by column."""
    try:
        table = csv.DictReader(lines, restkey="", skipinitialspace=True)
        header = table.fieldnames or ()
        check_columns(name, header, required, optional)
        for cells in table:
            line = f"{name}, line {table.line_num}"
            if "" in cells or None in cells.values():
                raise ValueError(f"{line}: the line does not have one cell for each of {', '.join(header)}")
            yield line, {column: cell.strip() for column, cell in cells.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{name} cannot be read ({error}): save it as CSV in UTF-8, with every quote closed") from None


def read_columns(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> pa.Table:
    """Return the named columns of a CSV as text, whatever they contain, and those optional ones that it has."""
    import pyarrow as pa  # here, since the settings of partitions need this module and not this package
    import pyarrow.csv

    if not path.is_file():
        raise ValueError(f"Table {path} does not exist: check the path")
    read_options = pa.csv.ReadOptions(block_size=BLOCK_BYTES)
    parse_options = pa.csv.ParseOptions(newlines_in_values=True)  # titles of images have them
    with named_if_damaged(path, "download it again"):
        header = pa.csv.open_csv(path, read_options, parse_options).schema.names
        check_columns(f"Table {path}", header, required)
        columns = [*required, *(name for name in optional if name in header)]
        column_types = dict.fromkeys(columns, pa.string())
        convert_options = pa.csv.ConvertOptions(include_columns=columns, column_types=column_types)
        return pa.csv.read_csv(path, read_options, parse_options, convert_options)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
