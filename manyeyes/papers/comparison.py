"""Measured beside printed: what the runs of an item gave, as mean and deviation over seeds, and what the paper has."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev

from manyeyes.papers.item import Item, Number, Row, Run, Store
from manyeyes.papers.margin import within
from manyeyes.papers.measure import Final, Measure, Outcome
from manyeyes.papers.plan import How, job, seeds
from manyeyes.papers.statistic import Statistic
from manyeyes.papers.timing import Lag, lag, near, told
from manyeyes.population import Population
from manyeyes.run.census import NAME as CENSUS


def digits(value: float, count: int, sign: str = "") -> str:
    """A number with so many digits, or with all before its point, and no exponent."""
    places = count - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, min(9, max(0, places))):{sign},.12g}"


@dataclass(frozen=True)
class Line:
    """One number of a paper, and what was measured for it."""

    row: str
    measure: Measure | Statistic
    printed: Number | None
    measured: tuple[float, ...]  # one for each seed that is there
    real: bool = True  # whether it is of the paper's own runs
    diverged: bool = False  # whether no run of the row stayed finite
    chosen: str = ""  # of a row that is the best of a grid, which of its runs was
    here: int = 0  # of runs that are smaller, the rounds or batches after which they were measured instead
    lags: tuple[Lag | None, ...] = ()  # of each seed, how far from there it was evaluated

    @property
    def factor(self) -> int:
        """From shares of 1 to the paper's unit."""
        return 100 if self.printed is not None and self.printed.unit == "%" else 1

    @property
    def comparable(self) -> bool:
        """Whether what was measured is what the paper did."""
        return self.real and self.printed is not None and bool(self.measured) and near(self.lags)

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
    def within(self) -> bool | None:
        if not self.comparable or self.printed is None:
            return None
        least = self.factor * min(self.measured)  # what the paper never saw, no seed may have reached
        return within(self.measure, self.printed, least if self.printed.beyond else self.mean)

    def words(self) -> str:
        """Mean and deviation, in the paper's unit; empty where nothing was measured."""
        if not self.measured:
            return "diverged" if self.diverged else ""
        if never := sum(not math.isfinite(value) for value in self.measured):
            return "never" if never == len(self.measured) else f"never with {never} of {len(self.measured)} seeds"
        spread = f" ± {digits(self.factor * stdev(self.measured), 2)}" if len(self.measured) > 1 else ""
        return digits(self.mean, 4) + spread

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Row, measure, paper, measured, difference, within."""
        what = f"{self.measure}, here {self.here:,}" if self.here else str(self.measure)
        far = ["too far to compare"] if self.real and self.printed is not None and not near(self.lags) else []
        about = "; ".join(filter(None, [self.chosen, ", ".join([told(self.lags), *far])]))
        measured = f"{self.words()} ({about})" if about else self.words()
        apart = "" if self.difference is None else digits(self.difference, 3, "+")
        verdict = {None: "", True: "yes", False: "no"}[self.within]
        return self.row, what, str(self.printed or ""), measured, apart, verdict


@dataclass(frozen=True, eq=False)
class Found:
    """What the runs of an item have left behind."""

    item: Item
    how: How

    @cached_property
    def troubles(self) -> dict[Path, str]:
        """A sentence for each run that is done and cannot be read or measured: it is left out."""
        return {}

    @cached_property
    def _outcomes(self) -> dict[tuple[str, int], Outcome | None]:
        return {}

    def outcome(self, run: Run, seed: int) -> Outcome | None:
        """Of a run that is done; None of another."""
        key = (run.name, seed)
        if key not in self._outcomes:
            self._outcomes[key] = None
            one = job(self.item, self.how, run, seed)
            try:
                self._outcomes[key] = Outcome.of(one.folder) if one.state == "done" else None
            except ValueError as error:
                self.troubles[one.folder] = str(error)
        return self._outcomes[key]

    def bound(self, row: Row, seed: int) -> float | None:
        """The centralised accuracy that the row is relative to."""
        if row.bound is None or (reached := self.outcome(row.bound, seed)) is None:
            return None
        return self._of(Final("accuracy"), reached, row.bound, seed)

    def _of(self, measure: Measure, outcome: Outcome, run: Run, seed: int) -> float | None:
        """The measure of that run; None, and told, where it has none."""
        try:
            return measure.of(outcome)
        except ValueError as error:
            folder = job(self.item, self.how, run, seed).folder
            self.troubles[folder] = f"{folder}: {error}"
            return None

    def best(self, row: Row, measure: Measure, seed: int) -> tuple[float, Outcome, Run] | None:
        """The measure of the row's run with that seed, or of the best of its runs, and that run."""
        asked, bound, values = self.how.measure(measure), self.bound(row, seed), []
        for run in row.runs:
            if (outcome := self.outcome(run, seed)) is None:
                continue
            value = self._of(asked, outcome := outcome.beside(bound), run, seed)
            values += [] if value is None else [(value, outcome, run)]
        return max(values, key=lambda found: found[0], default=None)

    def values(self, row: Row, measure: Measure) -> tuple[float, ...]:
        """One for each seed that is there."""
        return tuple(value for value, _, _ in self._bests(row, measure))

    def outcomes(self, row: Row, measure: Measure) -> list[Outcome]:
        """The row's runs, or the best ones, of the seeds that are there."""
        return [outcome for _, outcome, _ in self._bests(row, measure)]

    def lags(self, row: Row, measure: Measure) -> tuple[Lag | None, ...]:
        """Of each of the values, how far from what is meant it was evaluated."""
        asked = self.how.measure(measure)
        return tuple(lag(asked, outcome) for _, outcome, _ in self._bests(row, measure))

    def chosen(self, row: Row, measure: Measure) -> str:
        """What sets the best run of a grid apart from the others, of every seed that is there."""
        if len(row.runs) == 1:
            return ""
        names = {run.name: re.split("-(?=[A-Za-z])", run.name) for run in row.runs}
        same = len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*names.values(), strict=False))))
        return ", ".join(dict.fromkeys("-".join(names[run.name][same:]) for *_, run in self._bests(row, measure)))

    def _bests(self, row: Row, measure: Measure) -> list[tuple[float, Outcome, Run]]:
        found = (self.best(row, measure, seed) for seed in seeds(self.item, self.how))
        return [one for one in found if one is not None]

    def emd(self, run: Run) -> float | None:
        """The mean EMD of the clients that a run trains on, which it counted when it began."""
        for seed in seeds(self.item, self.how):
            census = job(self.item, self.how, run, seed).folder / CENSUS
            if census.exists():
                return float(json.loads(census.read_text())["parts"]["train"]["mean_emd"])
        return None

    def diverged(self, row: Row) -> bool:
        states = {job(self.item, self.how, run, seed).state for run in row.runs for seed in seeds(self.item, self.how)}
        return states == {"diverged"}


def compare(found: Found, populations: Mapping[Store, Population]) -> list[Line]:
    """A line for each number, from the runs that are done and the datasets that are at hand."""
    lines = []
    for row in found.item.rows:
        diverged = bool(row.runs) and found.diverged(row)
        for measure, printed in row.expected.items():
            if isinstance(measure, Statistic):
                held = [store for store in row.stores if store in populations and store.path.endswith(measure.store)]
                values = tuple(measure.of(populations[store]) for store in held[:1])
                lines.append(Line(row.name, measure, printed, values, not found.how.mark, diverged))
            else:
                values, chosen = found.values(row, measure), found.chosen(row, measure)
                asked = found.how.measure(measure)
                here = 0 if asked == measure else getattr(asked, "rounds", 0) or getattr(asked, "batches", 0)
                late, real = found.lags(row, measure), not found.how.mark
                lines.append(Line(row.name, measure, printed, values, real, diverged, chosen, here, late))
    return lines
