"""What a paper prints, read from its TOML file: titles, claims, tables and sentences with numbers."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, Expected, PrintedValue
from manyeyes.papers.metric import Metric
from manyeyes.papers.statistics import Statistic


@cache
def read_paper(paper: str) -> dict[str, Any]:
    """Return what a paper's file has of each exhibit: title, claim, note, and the printed numbers."""
    return tomllib.loads(files("manyeyes.papers").joinpath(f"{paper}.toml").read_text("utf-8"))


def printed_table(paper: str, exhibit: str) -> list[list[str]]:
    """Return the cells of an exhibit's printed table; the first row is the header."""
    return [line.split() for line in read_paper(paper)[exhibit]["printed"].strip().splitlines()]


def percentages(metrics: Mapping[str, Metric | Statistic], cells: Iterable[str], source: str) -> Expected:
    """Return the numbers of a row, by the columns of their metrics; a cell may have a deviation, as 60.6±0.5."""
    expected: Expected = {}
    for (column, metric), cell in zip(metrics.items(), cells, strict=True):
        value, _, std = cell.partition("±")
        expected[metric] = PrintedValue(float(value), "%", f"{source}, {column}", float(std) if std else None)
    return expected


def dataset_rows(
    paper: str, exhibit: str, datasets: Mapping[str, DatasetRecipe], counted: Iterable[Statistic] = ()
) -> Iterator[ExhibitRow]:
    """Yield a row for each dataset: what is counted, and the numbers that sentences of the paper state about it."""
    for row, dataset in datasets.items():
        expected: Expected = dict.fromkeys(counted)
        for number in read_paper(paper)[exhibit].get("quoted", ()):
            if number.get("row", row) == row:
                source = f'{number["section"]}: "{number["quote"]}"'
                printed = PrintedValue(number["value"], number["unit"], source)
                expected[Statistic(number["count"], number.get("label", ""))] = printed
        yield ExhibitRow(row, expected=expected, datasets=(dataset,))


def make_exhibits(
    paper: str, rows: Mapping[str, Iterable[ExhibitRow]], columns: Mapping[str, Mapping[str, Metric]] | None = None
) -> tuple[Exhibit, ...]:
    """Return the exhibits of a paper: their texts from the paper's file, with these rows and columns of tables."""
    exhibits = []
    for name, exhibit_rows in rows.items():
        text = read_paper(paper)[name]
        note = text.get("note", "").format_map(read_paper(paper).get("notes", {}))
        values = (
            text["title"],
            tuple(exhibit_rows),
            text["claim"],
            note,
            text.get("num_seeds", 1),
            tuple(text["charts"]),
            tuple((columns or {}).get(name, {}).items()),
        )
        exhibits.append(Exhibit(paper, name, *values))
    return tuple(exhibits)
