"""Measured beside printed: what the runs of an item gave, as mean and deviation over seeds, and what the paper has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from manyeyes.papers.item import Item, Number, Row, Run, Store
from manyeyes.papers.measure import Final, Measure, Outcome
from manyeyes.papers.plan import How, job, seeds
from manyeyes.papers.statistic import Statistic
from manyeyes.population import Population


@dataclass(frozen=True)
class Line:
    """One number of a paper, and what was measured for it."""

    row: str
    measure: str
    printed: Number | None
    measured: tuple[float, ...]  # one for each seed that is there

    @property
    def unit(self) -> str:
        return "" if self.printed is None else self.printed.unit

    def words(self) -> str:
        """Mean and deviation, in the paper's unit; empty where nothing was measured."""
        if not self.measured:
            return ""
        factor = 100 if self.unit == "%" else 1
        text = f"{factor * fmean(self.measured):,.4g}"
        return text + (f" ± {factor * stdev(self.measured):.2g}" if len(self.measured) > 1 else "")


def compare(item: Item, how: How, populations: Mapping[Store, Population]) -> list[Line]:
    """A line for each number, from the runs that are done and the datasets that are at hand."""
    lines = []
    for row in item.rows:
        for measure, printed in row.expected.items():
            asked = how.measure(measure)
            if isinstance(asked, Statistic):
                held = [store for store in row.stores if store in populations and store.path.endswith(asked.store)]
                values = [asked.of(populations[store]) for store in held[:1]]
            else:
                values = [v for seed in seeds(item, how) if (v := _best(item, how, row, asked, seed)) is not None]
            lines.append(Line(row.name, str(asked), printed, tuple(values)))
    return lines


def markdown(item: Item, how: How, lines: list[Line]) -> str:
    """The lines as a table for a file; what is not the paper's own run says so in its head."""
    mark = f" ({how.mark})" if how.mark else ""
    text = f"# {item.key}: {item.title}\n\n{item.claim}\n\n"
    text += f"**Measured {how.mark}: these are not the paper's runs.**\n\n" if how.mark else ""
    text += f"| row | measure | paper | measured{mark} |\n|---|---|---:|---:|\n"
    for line in lines:
        text += f"| {line.row} | {line.measure} | {line.printed or ''} | {line.words()} |\n"
    return text + (f"\n{item.note.strip()}\n" if item.note else "")


def _best(item: Item, how: How, row: Row, measure: Measure, seed: int) -> float | None:
    """The measure of the row's run with that seed, or of the best of its runs; None where none is done."""
    bound = None if row.bound is None else _outcome(item, how, row.bound, seed)
    reached = None if bound is None else Final("accuracy").of(bound)
    found = [_outcome(item, how, run, seed, reached) for run in row.runs]
    values = [measure.of(outcome) for outcome in found if outcome is not None]
    return max((value for value in values if value is not None), default=None)


def _outcome(item: Item, how: How, run: Run, seed: int, bound: float | None = None) -> Outcome | None:
    one = job(item, how, run, seed)
    return Outcome.of(one.folder, bound) if one.state == "done" else None
