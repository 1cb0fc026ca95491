"""Measured numbers next to printed ones: the mean and deviation over seeds of an exhibit's runs, and the paper's value."""

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from manyeyes.core.population import Population
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.metric import AfterRounds, Final, Metric, Relative, RunOutcome, WithinBatches
from manyeyes.papers.plan import PlannedRun, ReproduceOptions, planned_run, seeds
from manyeyes.papers.statistics import Statistic
from manyeyes.papers.timing import EvaluationGap, all_close, describe, evaluation_gap
from manyeyes.papers.tolerance import is_within


def format_digits(value: float, digits: int, sign: str = "") -> str:
    """Return a number with this many significant digits, or with all digits before its point, and no exponent."""
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, min(9, max(0, decimals))):{sign},.12g}"


def header(tag: str) -> list[str]:
    """Return the header of `ComparedNumber.cells`; the tag says how runs differ from the paper's."""
    return ["row", "metric", "paper", f"measured ({tag})" if tag else "measured", "difference", "within"]


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

    @property
    def unit_factor(self) -> int:
        """The factor from fractions of 1 to the paper's unit."""
        return 100 if self.printed is not None and self.printed.unit == "%" else 1

    @property
    def is_comparable(self) -> bool:
        return self.is_paper_run and self.printed is not None and bool(self.measured) and all_close(self.gaps)

    @property
    def values(self) -> list[float]:
        """The measured values in the paper's unit."""
        return [self.unit_factor * value for value in self.measured]

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

    @property
    def verdict(self) -> str:
        return {None: "", True: "yes", False: "no"}[self.is_within]

    def describe(self) -> str:
        """Return mean and deviation in the paper's unit; empty if nothing was measured."""
        if not self.measured:
            return "diverged" if self.diverged else ""
        if num_never := sum(not math.isfinite(value) for value in self.measured):
            num_seeds = len(self.measured)
            return "never" if num_never == num_seeds else f"never with {num_never} of {num_seeds} seeds"
        deviation = f" ± {format_digits(stdev(self.values), 2)}" if len(self.values) > 1 else ""
        return format_digits(fmean(self.values), 4) + deviation

    def cells(self) -> list[str]:
        """Return the text of each column of `header`."""
        metric = f"{self.metric}, here {self.scaled_budget:,}" if self.scaled_budget else str(self.metric)
        is_too_far = self.is_paper_run and self.printed is not None and not all_close(self.gaps)
        gap = describe(self.gaps) + (", too far to compare" if is_too_far else "")
        details = "; ".join(filter(None, [self.best_run, gap]))
        measured = f"{self.describe()} ({details})" if details else self.describe()
        difference = "" if self.difference is None else format_digits(self.difference, 3, "+")
        return [self.row, metric, str(self.printed or ""), measured, difference, self.verdict]

    def csv_row(self, tag: str) -> dict[str, object]:
        """Return all digits, and each detail in a column of its own."""
        values = self.values
        is_finite = bool(values) and all(map(math.isfinite, values))
        bound = ">" if self.printed and self.printed.is_lower_bound else ""
        return {
            "row": self.row,
            "metric": self.metric,
            "here": self.scaled_budget or "",
            "unit": self.printed.unit if self.printed else "",
            "paper": f"{bound}{self.printed.value:.12g}" if self.printed else "",
            "measured": f"{fmean(values):.12g}" if is_finite else self.describe(),
            "deviation": f"{stdev(values):.12g}" if is_finite and len(values) > 1 else "",
            "seeds": len(values) or "",
            "difference": "" if self.difference is None else f"{self.difference:.12g}",
            "within": self.verdict,
            "run": self.best_run,
            "evaluated": describe(self.gaps),
            "runs are": tag,
        }


class BestRun(NamedTuple):
    """The run of a row with the highest value, for one seed."""

    value: float
    outcome: RunOutcome
    run: RunRecipe


@dataclass(frozen=True, eq=False)
class ExhibitResults:
    """The results of an exhibit's runs, read from their folders when they are needed."""

    exhibit: Exhibit
    options: ReproduceOptions
    errors: dict[Path, str] = field(default_factory=dict)  # a sentence for each finished run that cannot be used
    _outcomes: dict[Path, RunOutcome | None] = field(default_factory=dict)

    def outcome(self, run: RunRecipe, seed: int) -> RunOutcome | None:
        """Return the outcome of a finished run; None if it is not finished, or damaged."""
        planned = self._planned_run(run, seed)
        if planned.folder not in self._outcomes:
            self._outcomes[planned.folder] = None
            try:
                if planned.status == "finished":
                    self._outcomes[planned.folder] = RunOutcome.from_folder(planned.folder)
            except ValueError as error:
                self.errors[planned.folder] = str(error)
        return self._outcomes[planned.folder]

    def centralized_baseline(self, row: ExhibitRow, seed: int) -> float | None:
        """Return the centralized accuracy that the row's relative accuracies refer to."""
        run = row.centralized_baseline
        outcome = None if run is None else self.outcome(run, seed)
        return None if run is None or outcome is None else self._value(Final("accuracy"), outcome, run, seed)

    def best_runs(self, row: ExhibitRow, metric: Metric) -> list[BestRun]:
        """Return the row's best run for each seed that has one."""
        best = (self._best_run(row, self.options.scale_metric(metric), seed) for seed in self.seeds)
        return [run for run in best if run is not None]

    def values(self, row: ExhibitRow, metric: Metric) -> list[float]:
        """Return the value of the row's best run for each seed that has one."""
        return [best.value for best in self.best_runs(row, metric)]

    def gaps(self, row: ExhibitRow, metric: Metric) -> tuple[EvaluationGap | None, ...]:
        """Return the evaluation gap of each of the values."""
        scaled = self.options.scale_metric(metric)
        return tuple(evaluation_gap(scaled, best.outcome) for best in self.best_runs(row, metric))

    @property
    def seeds(self) -> range:
        return seeds(self.exhibit, self.options)

    def has_diverged(self, row: ExhibitRow) -> bool:
        """Return whether every run of a row has diverged."""
        return {self._planned_run(run, seed).status for run in row.runs for seed in self.seeds} == {"diverged"}

    def _planned_run(self, run: RunRecipe, seed: int) -> PlannedRun:
        return planned_run(self.exhibit, self.options, run, seed)

    def _best_run(self, row: ExhibitRow, metric: Metric, seed: int) -> BestRun | None:
        baseline, candidates = self.centralized_baseline(row, seed), []
        for run in row.runs:
            if (outcome := self.outcome(run, seed)) is not None:
                outcome = replace(outcome, centralized_baseline=baseline)
                if (value := self._value(metric, outcome, run, seed)) is not None:
                    candidates.append(BestRun(value, outcome, run))
        return max(candidates, key=lambda candidate: candidate.value, default=None)

    def _value(self, metric: Metric, outcome: RunOutcome, run: RunRecipe, seed: int) -> float | None:
        """Return the metric of a run; if it cannot be computed, record an error and return None."""
        try:
            return metric.compute(outcome)
        except ValueError as error:
            folder = self._planned_run(run, seed).folder
            self.errors[folder] = f"{folder}: {error}"
            return None


def compare(results: ExhibitResults, populations: Mapping[DatasetRecipe, Population]) -> list[ComparedNumber]:
    """Compare each number of an exhibit, with the runs that have finished and the datasets that are available."""
    return [
        _count(results, row, metric, printed, populations)
        if isinstance(metric, Statistic)
        else _measure(results, row, metric, printed)
        for row in results.exhibit.rows
        for metric, printed in row.expected.items()
    ]


def to_csv(numbers: list[ComparedNumber], tag: str) -> str:
    """Return the compared numbers as a CSV file."""
    rows = [number.csv_row(tag) for number in numbers]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else ["row"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _count(
    results: ExhibitResults,
    row: ExhibitRow,
    statistic: Statistic,
    printed: PrintedValue | None,
    populations: Mapping[DatasetRecipe, Population],
) -> ComparedNumber:
    candidates = [data for data in row.datasets if data in populations and data.path.endswith(statistic.path_suffix)]
    values = tuple(statistic.compute(populations[dataset]) for dataset in candidates[:1])
    return ComparedNumber(row.name, statistic, printed, values, not results.options.tag)


def _measure(results: ExhibitResults, row: ExhibitRow, metric: Metric, printed: PrintedValue | None) -> ComparedNumber:
    scaled, best_runs = results.options.scale_metric(metric), results.best_runs(row, metric)
    return ComparedNumber(
        row.name,
        metric,
        printed,
        tuple(best.value for best in best_runs),
        not results.options.tag,
        bool(row.runs) and results.has_diverged(row),
        _distinguish(row, [best.run for best in best_runs]),
        0 if scaled == metric else _budget(scaled),
        tuple(evaluation_gap(scaled, best.outcome) for best in best_runs),
    )


def _budget(metric: Metric) -> int:
    if isinstance(metric, AfterRounds | Relative):
        return metric.rounds
    return metric.batches if isinstance(metric, WithinBatches) else 0


def _distinguish(row: ExhibitRow, best_runs: list[RunRecipe]) -> str:
    """Return the parts of names that distinguish the best runs from the others of a grid."""
    if len(row.runs) == 1:
        return ""
    names = {run.name: re.split("-(?=[A-Za-z])", run.name) for run in row.runs}
    num_shared = len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*names.values(), strict=False))))
    return ", ".join(dict.fromkeys("-".join(names[run.name][num_shared:]) for run in best_runs))
