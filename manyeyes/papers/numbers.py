"""The numbers of an item as a CSV file: the paper's, and ours with all digits."""

import csv
import io
import math
from statistics import fmean, stdev

from manyeyes.papers.comparison import ComparedNumber
from manyeyes.papers.timing import describe

HEAD = (
    "row",
    "measure",
    "here",  # the smaller budget of smaller runs
    "unit",
    "paper",
    "measured",
    "deviation",
    "seeds",
    "difference",
    "within",
    "run",  # the best of a grid
    "evaluated",  # where that was not when it should have been
    "runs are",  # not the paper's
)


def table(lines: list[ComparedNumber], mark: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for line in lines:
        values = [line.factor * value for value in line.measured]
        finite = bool(values) and all(map(math.isfinite, values))
        writer.writerow(
            [
                line.row,
                line.measure,
                line.is_run_here or "",
                line.printed.unit if line.printed else "",
                f"{'>' * line.printed.beyond}{line.printed.value:.12g}" if line.printed else "",
                f"{fmean(values):.12g}" if finite else line.describe(),
                f"{stdev(values):.12g}" if finite and len(values) > 1 else "",
                len(values) or "",
                "" if line.difference is None else f"{line.difference:.12g}",
                line.cells()[-1],
                line.chosen,
                describe(line.lags),
                mark,
            ]
        )
    return text.getvalue()
