"""Runs side by side: what each reached, how fast, and how near to centralised training (Hsu et al. 2020, section 6)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from manyeyes.metrics import Curve, relative_accuracy

TAIL = 5  # evaluations that a curve's end is averaged over, and its unrest measured on


@dataclass(frozen=True)
class ComparisonRow:
    """One run of a comparison."""

    name: str
    accuracy: float
    relative: float  # accuracy / that of the centralised bound
    rounds: int | None  # to reach the target; None: never
    batches: int | None  # of the largest client a round, until then
    fluctuation: float  # standard deviation over the last evaluations


def compare(curves: Mapping[str, Curve], baseline: float, target: float) -> list[ComparisonRow]:
    """A row for each federated curve, against the centralised accuracy `bound`."""
    return [
        ComparisonRow(
            name,
            float(curve.values_E[-1]),
            relative_accuracy(float(curve.values_E[-1]), baseline),
            curve.rounds_to(target),
            curve.batches_to(target),
            float(np.std(curve.values_E[-TAIL:])),
        )
        for name, curve in curves.items()
    ]


def table(rows: list[ComparisonRow], baseline: float, target: float) -> Table:
    """The rows for a terminal."""
    made = Table("", "accuracy", "relative", f"rounds to {target:.0%}", f"batches to {target:.0%}", "unrest")
    for column in made.columns[1:]:
        column.justify = "right"
    made.add_row("centralised", f"{baseline:.1%}", "1.00", "", "", "", end_section=True)
    for row in rows:
        made.add_row(*_cells(row))
    return made


def markdown(rows: list[ComparisonRow], baseline: float, target: float) -> str:
    """The rows for a file."""
    head = ["", "accuracy", "relative", f"rounds to {target:.0%}", f"batches to {target:.0%}", "unrest"]
    lines = [head, ["---", *["---:"] * 5], ["centralised", f"{baseline:.1%}", "1.00", "", "", ""], *map(_cells, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(row: ComparisonRow) -> list[str]:
    counts = ["never" if count is None else f"{count:,}" for count in (row.rounds, row.batches)]
    return [row.name, f"{row.accuracy:.1%}", f"{row.relative:.2f}", *counts, f"{row.fluctuation:.1%}"]
