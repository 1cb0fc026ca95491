"""Measured beside printed: what the runs of an item gave, as mean and deviation over seeds, and what the paper has."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev

from manyeyes.core.population import Population
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.metric import Final, Metric, RunOutcome
from manyeyes.papers.plan import ReproduceOptions, job, seeds
from manyeyes.papers.statistics import Statistic
from manyeyes.papers.timing import EvaluationGap, all_close, describe, evaluation_gap
from manyeyes.papers.tolerance import is_within
from manyeyes.training.run_files import DATASET_STATS_FILE as CENSUS


def digits(value: float, count: int, sign: str = "") -> str:
    """A number with so many digits, or with all before its point, and no exponent."""
    places = count - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, min(9, max(0, places))):{sign},.12g}"


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a paper, and what was measured for it."""

    row: str
    measure: Metric | Statistic
    printed: PrintedValue | None
    measured: tuple[float, ...]  # one for each seed that is there
    is_real: bool = True  # whether it is of the paper's own runs
    diverged: bool = False  # whether no run of the row stayed finite
    chosen: str = ""  # of a row that is the best of a grid, which of its runs was
    is_run_here: int = 0  # of runs that are smaller, the rounds or batches after which they were measured instead
    lags: tuple[EvaluationGap | None, ...] = ()  # of each seed, how far from there it was evaluated

    @property
    def factor(self) -> int:
        """From shares of 1 to the paper's unit."""
        return 100 if self.printed is not None and self.printed.unit == "%" else 1

    @property
    def comparable(self) -> bool:
        """Whether what was measured is what the paper did."""
        return self.is_real and self.printed is not None and bool(self.measured) and all_close(self.lags)

    @property
    def mean(self) -> float:
        return self.factor * fmean(self.measured)

    @property
    def difference(self) -> float | None:
        """Measured less printed, in the paper's unit; None where they cannot be compared."""
        if not self.comparable or self.printed is None or self.printed.beyond:
            return None
        return self.mean - self.printed.value if math.isfinite(self.mean) else None

    @property
    def is_within(self) -> bool | None:
        if not self.comparable or self.printed is None:
            return None
        least = self.factor * min(self.measured)  # what the paper never saw, no seed may have reached
        return is_within(self.measure, self.printed, least if self.printed.beyond else self.mean)

    def describe(self) -> str:
        """Mean and deviation, in the paper's unit; empty where nothing was measured."""
        if not self.measured:
            return "diverged" if self.diverged else ""
        if never := sum(not math.isfinite(value) for value in self.measured):
            return "never" if never == len(self.measured) else f"never with {never} of {len(self.measured)} seeds"
        spread = f" ± {digits(self.factor * stdev(self.measured), 2)}" if len(self.measured) > 1 else ""
        return digits(self.mean, 4) + spread

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Row, measure, paper, measured, difference, within."""
        what = f"{self.measure}, here {self.is_run_here:,}" if self.is_run_here else str(self.measure)
        far = ["too far to compare"] if self.is_real and self.printed is not None and not all_close(self.lags) else []
        about = "; ".join(filter(None, [self.chosen, ", ".join([describe(self.lags), *far])]))
        measured = f"{self.describe()} ({about})" if about else self.describe()
        apart = "" if self.difference is None else digits(self.difference, 3, "+")
        verdict = {None: "", True: "yes", False: "no"}[self.is_within]
        return self.row, what, str(self.printed or ""), measured, apart, verdict


@dataclass(frozen=True, eq=False)
class ExhibitResults:
    """What the runs of an item have left behind."""

    item: Exhibit
    options: ReproduceOptions

    @cached_property
    def errors(self) -> dict[Path, str]:
        """A sentence for each run that is done and cannot be read or measured: it is left out."""
        return {}

    @cached_property
    def _outcomes(self) -> dict[tuple[str, int], RunOutcome | None]:
        return {}

    def outcome(self, run: RunRecipe, seed: int) -> RunOutcome | None:
        """Of a run that is done; None of another."""
        key = (run.name, seed)
        if key not in self._outcomes:
            self._outcomes[key] = None
            one = job(self.item, self.options, run, seed)
            try:
                self._outcomes[key] = RunOutcome.from_folder(one.folder) if one.status == "finished" else None
            except ValueError as error:
                self.errors[one.folder] = str(error)
        return self._outcomes[key]

    def centralized_baseline(self, row: ExhibitRow, seed: int) -> float | None:
        """The centralised accuracy that the row is relative to."""
        if row.centralized_baseline is None or (reached := self.outcome(row.centralized_baseline, seed)) is None:
            return None
        return self._of(Final("accuracy"), reached, row.centralized_baseline, seed)

    def _of(self, measure: Metric, outcome: RunOutcome, run: RunRecipe, seed: int) -> float | None:
        """The measure of that run; None, and told, where it has none."""
        try:
            return measure.compute(outcome)
        except ValueError as error:
            folder = job(self.item, self.options, run, seed).folder
            self.errors[folder] = f"{folder}: {error}"
            return None

    def best(self, row: ExhibitRow, measure: Metric, seed: int) -> tuple[float, RunOutcome, RunRecipe] | None:
        """The measure of the row's run with that seed, or of the best of its runs, and that run."""
        asked, bound, values = self.options.measure(measure), self.centralized_baseline(row, seed), []
        for run in row.runs:
            if (outcome := self.outcome(run, seed)) is None:
                continue
            value = self._of(asked, outcome := outcome.with_baseline(bound), run, seed)
            values += [] if value is None else [(value, outcome, run)]
        return max(values, key=lambda found: found[0], default=None)

    def values(self, row: ExhibitRow, measure: Metric) -> tuple[float, ...]:
        """One for each seed that is there."""
        return tuple(value for value, _, _ in self._bests(row, measure))

    def outcomes(self, row: ExhibitRow, measure: Metric) -> list[RunOutcome]:
        """The row's runs, or the best ones, of the seeds that are there."""
        return [outcome for _, outcome, _ in self._bests(row, measure)]

    def lags(self, row: ExhibitRow, measure: Metric) -> tuple[EvaluationGap | None, ...]:
        """Of each of the values, how far from what is meant it was evaluated."""
        asked = self.options.measure(measure)
        return tuple(evaluation_gap(asked, outcome) for _, outcome, _ in self._bests(row, measure))

    def chosen(self, row: ExhibitRow, measure: Metric) -> str:
        """What sets the best run of a grid apart from the others, of every seed that is there."""
        if len(row.runs) == 1:
            return ""
        names = {run.name: re.split("-(?=[A-Za-z])", run.name) for run in row.runs}
        same = len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*names.values(), strict=False))))
        return ", ".join(dict.fromkeys("-".join(names[run.name][same:]) for *_, run in self._bests(row, measure)))

    def _bests(self, row: ExhibitRow, measure: Metric) -> list[tuple[float, RunOutcome, RunRecipe]]:
        found = (self.best(row, measure, seed) for seed in seeds(self.item, self.options))
        return [one for one in found if one is not None]

    def emd(self, run: RunRecipe) -> float | None:
        """The mean EMD of the clients that a run trains on, which it counted when it began."""
        for seed in seeds(self.item, self.options):
            census = job(self.item, self.options, run, seed).folder / CENSUS
            if census.exists():
                return float(json.loads(census.read_text())["parts"]["train"]["mean_emd"])
        return None

    def diverged(self, row: ExhibitRow) -> bool:
        states = {
            job(self.item, self.options, run, seed).status
            for run in row.runs
            for seed in seeds(self.item, self.options)
        }
        return states == {"diverged"}


def compare(found: ExhibitResults, populations: Mapping[DatasetRecipe, Population]) -> list[ComparedNumber]:
    """A line for each number, from the runs that are done and the datasets that are at hand."""
    lines = []
    for row in found.item.rows:
        diverged = bool(row.runs) and found.diverged(row)
        for measure, printed in row.expected.items():
            if isinstance(measure, Statistic):
                held = [store for store in row.stores if store in populations and store.path.endswith(measure.store)]
                values = tuple(measure.compute(populations[store]) for store in held[:1])
                lines.append(ComparedNumber(row.name, measure, printed, values, not found.options.tag, diverged))
            else:
                values, chosen = found.values(row, measure), found.chosen(row, measure)
                asked = found.options.measure(measure)
                here = 0 if asked == measure else getattr(asked, "rounds", 0) or getattr(asked, "batches", 0)
                late, real = found.lags(row, measure), not found.options.tag
                lines.append(ComparedNumber(row.name, measure, printed, values, real, diverged, chosen, here, late))
    return lines
