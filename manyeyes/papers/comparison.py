"""Measured numbers next to printed ones: mean and deviation over an exhibit's seeds, and the paper's value."""

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, stdev

from manyeyes.core.population import CAVEAT_SEPARATOR, SYNTHETIC, caveats_of
from manyeyes.papers.exhibit import ExhibitRow, PrintedValue, RunRecipe, is_within
from manyeyes.papers.metric import AfterRounds, ClassMetric, Metric, UserQuantile, is_relative
from manyeyes.papers.notes import caveat_notes, choice_notes, row_notes
from manyeyes.papers.results import ExhibitResults
from manyeyes.papers.statistics import Statistic
from manyeyes.papers.timing import EvaluationGap, all_close, describe
from manyeyes.report.table import Table

PRINTED_COLUMNS = ["row", "metric", "paper"]
VERDICTS = {None: "", True: "yes", False: "no"}


def format_digits(value: float, digits: int, sign: str = "") -> str:
    """Return a number with this many significant digits, or with all digits before its point, and no exponent."""
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, min(9, max(0, decimals))):{sign},.12g}"


def is_share(metric: Metric | Statistic) -> bool:
    """Return whether a metric is a fraction that papers print in percent."""
    if isinstance(metric, Statistic):
        return metric.name.startswith("users with")
    return isinstance(metric, ClassMetric | UserQuantile) or (isinstance(metric, AfterRounds) and not metric.relative)


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a paper, and what was measured for it."""

    row: str
    metric: Metric | Statistic
    printed: PrintedValue | None
    measured: tuple[float, ...]  # one for each seed that has finished
    is_paper_run: bool = True  # False if the runs are scaled, cut or on synthetic data
    diverged: bool = False  # every run of the row has diverged
    best_run: str = ""  # of a grid
    scaled_budget: int = 0  # rounds or batches after which smaller runs are measured, instead of the paper's
    gaps: tuple[EvaluationGap | None, ...] = ()  # one for each seed
    caveats: tuple[str, ...] = ()  # of the data
    notes: tuple[str, ...] = ()  # what has to be known of the runs

    @property
    def is_comparable(self) -> bool:
        return (
            self.is_paper_run
            and SYNTHETIC not in self.caveats
            and self.printed is not None
            and bool(self.measured)
            and all_close(self.gaps)
        )

    @property
    def unit(self) -> str:
        """The paper's unit; of a share without a printed number percent."""
        return self.printed.unit if self.printed else "%" * is_share(self.metric)

    @property
    def values(self) -> list[float]:
        """The measured values in that unit."""
        return [100 * value if self.unit == "%" else value for value in self.measured]

    @property
    def difference(self) -> float | None:
        """Measured minus printed, in the paper's unit; None if they cannot be compared."""
        if not self.is_comparable or self.printed is None or self.printed.is_lower_bound:
            return None
        mean = fmean(self.values)
        return mean - self.printed.value if math.isfinite(mean) else None

    @property
    def is_within(self) -> bool | None:
        """Whether the measured number agrees with the paper's; None if they cannot be compared."""
        if not self.is_comparable or self.printed is None:
            return None
        summary = min if self.printed.is_lower_bound else fmean  # every seed has to be above a lower bound
        return is_within(self.metric, self.printed, summary(self.values))

    def describe(self) -> str:
        """Return mean and deviation in the paper's unit; empty if nothing was measured."""
        if not self.measured:
            return "diverged" if self.diverged else ""
        if num_never := sum(not math.isfinite(value) for value in self.measured):
            num_seeds = len(self.measured)
            return "never" if num_never == num_seeds else f"never with {num_never} of {num_seeds} seeds"
        deviation = f" ± {format_digits(stdev(self.values), 2)}" if len(self.values) > 1 else ""
        unit = f" {self.unit}" if self.printed is None and self.unit else ""
        return format_digits(fmean(self.values), 4) + deviation + unit

    def cells(self) -> list[str]:
        """Return the text of each column of `comparison_table`."""
        metric = f"{self.metric}, here {self.scaled_budget:,}" if self.scaled_budget else str(self.metric)
        is_too_far = (
            self.is_paper_run
            and SYNTHETIC not in self.caveats
            and self.printed is not None
            and not all_close(self.gaps)
        )
        gap = describe(self.gaps) + (", too far to compare" if is_too_far else "")
        details = "; ".join(filter(None, [self.best_run, gap]))
        measured = f"{self.describe()} ({details})" if details else self.describe()
        difference = "" if self.difference is None else format_digits(self.difference, 3, "+")
        return [self.row, metric, str(self.printed or ""), measured, difference, VERDICTS[self.is_within]]

    def csv_row(self, tag: str) -> dict[str, object]:
        """Return all digits, and each detail in a column of its own."""
        values = self.values
        is_finite = bool(values) and all(map(math.isfinite, values))
        bound = ">" if self.printed and self.printed.is_lower_bound else ""
        return {
            "row": self.row,
            "metric": self.metric,
            "here": self.scaled_budget or "",
            "unit": self.unit,
            "paper": f"{bound}{self.printed.value:.12g}" if self.printed else "",
            "measured": f"{fmean(values):.12g}" if is_finite else self.describe(),
            "deviation": f"{stdev(values):.12g}" if is_finite and len(values) > 1 else "",
            "seeds": len(values) or "",
            "difference": "" if self.difference is None else f"{self.difference:.12g}",
            "agrees": VERDICTS[self.is_within],
            "run": self.best_run,
            "evaluated": describe(self.gaps),
            "runs are": tag,
            "data": CAVEAT_SEPARATOR.join(self.caveats),
            "notes": " ".join(self.notes),
        }


def compare(results: ExhibitResults) -> list[ComparedNumber]:
    """Compare each number of an exhibit, with the runs that have finished and the datasets that are available."""
    return [_compare(results, row, *number) for row in results.exhibit.rows for number in row.expected.items()]


def comparison_table(compared: Iterable[ComparedNumber], tag: str, title: str = "") -> Table:
    """Return a table of the compared numbers, with references to `numbered_notes`; the tag says how runs differ."""
    compared = list(compared)
    columns = [*PRINTED_COLUMNS, f"measured ({tag})" if tag else "measured", "difference", "agrees"]
    index = {note: f"[{number}]" for number, note in enumerate(_all_notes(compared), 1)}
    rows = []
    for number in compared:
        row, *cells = number.cells()
        rows.append([" ".join([row, *(index[note] for note in _notes(number))]), *cells])
    return Table(f"{title} ({tag})" if title and tag else title, columns, rows, is_prose=True)


def numbered_notes(compared: Iterable[ComparedNumber]) -> list[str]:
    """Return the notes that the rows of a comparison table refer to."""
    return [f"[{number}] {note}" for number, note in enumerate(_all_notes(compared), 1)]


def notes_by_row(compared: Iterable[ComparedNumber]) -> list[str]:
    """Return the notes with the rows that they are about, for a table that does not refer to them."""
    compared = list(compared)
    rows = dict.fromkeys(number.row for number in compared)
    lines = []
    for note in _all_notes(compared):
        noted = dict.fromkeys(number.row for number in compared if note in _notes(number))
        lines.append(f"{'all rows' if len(noted) == len(rows) else ', '.join(noted)}: {note}")
    return lines


def _all_notes(compared: Iterable[ComparedNumber]) -> list[str]:
    return list(dict.fromkeys(note for number in compared for note in _notes(number)))


def _notes(number: ComparedNumber) -> tuple[str, ...]:
    return (*number.notes, *caveat_notes(number.caveats))


def to_csv(compared: list[ComparedNumber], tag: str) -> str:
    rows = [number.csv_row(tag) for number in compared]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else ["row"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _compare(
    results: ExhibitResults, row: ExhibitRow, metric: Metric | Statistic, printed: PrintedValue | None
) -> ComparedNumber:
    is_paper_run, notes = not results.options.tag, row_notes(row, results.options)
    if isinstance(metric, Statistic):
        values, caveats = _count(results, row, metric)
        return ComparedNumber(row.name, metric, printed, values, is_paper_run, caveats=caveats, notes=notes)
    notes = (*notes, *choice_notes(row, metric, results.options))
    if is_relative(metric) and (note := results.baseline_note(row)):
        notes = (*notes, note)
    best_runs, scaled = results.best_runs(row, metric), results.options.scale_metric(metric)
    values, gaps = tuple(best.value for best in best_runs), tuple(best.gap for best in best_runs)
    has_diverged, best_run = results.has_diverged(row), _distinguish(row, [best.run for best in best_runs])
    budget = scaled.rounds if isinstance(scaled, AfterRounds) else getattr(scaled, "batches", 0)
    budget = (budget or 0) if scaled != metric else 0
    caveats = tuple(dict.fromkeys(caveat for best in best_runs for caveat in best.outcome.caveats))
    measured = (row.name, metric, printed, values, is_paper_run, has_diverged, best_run, budget, gaps)
    return ComparedNumber(*measured, caveats, notes)


def _count(results: ExhibitResults, row: ExhibitRow, statistic: Statistic) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the value of a statistic of a row's data, if they are there and have one, and their caveats."""
    datasets = [data for data in row.datasets if data.path.endswith(statistic.path_suffix)]
    available = [results.populations[data] for data in datasets if data in results.populations][:1]
    counted = [statistic.compute(population) for population in available]
    return tuple(value for value in counted if value is not None), caveats_of(available)


def _distinguish(row: ExhibitRow, best_runs: list[RunRecipe]) -> str:
    """Return the parts of names that distinguish the best runs from the others of a grid."""
    if len(row.runs) == 1:
        return ""
    names = {run.name: re.split("-(?=[A-Za-z])", run.name) for run in row.runs}
    num_shared = sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*names.values(), strict=False)))
    return ", ".join(dict.fromkeys("-".join(names[run.name][num_shared:]) for run in best_runs))
