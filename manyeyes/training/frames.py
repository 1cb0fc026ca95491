"""Runs as pandas data frames; pandas is loaded when the first of them is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from manyeyes.io.packages import import_optional

if TYPE_CHECKING:
    from pandas import DataFrame


def events_frame(events: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a row for each round and a column for each number; NaN where a round has no such number."""
    frame: DataFrame = import_optional("pandas").DataFrame(list(events))
    return frame.set_index("round") if len(events) else frame


def scores_frame(rows: Iterable[Mapping[str, str]], subject: str) -> DataFrame:
    """Return the rows of a table of scores, whose first column has the names of its classes or users."""
    if not (rows := [*rows]):
        reason = "it was not evaluated, has not finished, or privacy protects them"
        raise ValueError(f"The run has no scores of single {subject}: {reason}.")
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    name, examples, *scores = columns
    columns |= {examples: [*map(int, columns[examples])]} | {score: [*map(float, columns[score])] for score in scores}
    frame: DataFrame = import_optional("pandas").DataFrame(columns)
    return frame.set_index(name)
