"""The results of an exhibit's runs: their outcomes, and for each row and seed the best run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from manyeyes.core.population import SYNTHETIC, Population
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, RunRecipe
from manyeyes.papers.metric import AfterRounds, Metric, RunOutcome
from manyeyes.papers.plan import ON_SYNTHETIC_DATA, ReproduceOptions, planned_run, planned_runs
from manyeyes.papers.timing import EvaluationGap, evaluation_gap
from manyeyes.training.run_reader import read_run


class BestRun(NamedTuple):
    """The run of a row with the highest value, for one seed."""

    value: float
    outcome: RunOutcome
    run: RunRecipe
    gap: EvaluationGap | None


@dataclass(frozen=True, eq=False)
class ExhibitResults:
    """The results of an exhibit's runs, read from their folders when they are needed."""

    exhibit: Exhibit
    options: ReproduceOptions
    populations: Mapping[DatasetRecipe, Population] = field(default_factory=dict)  # the available datasets
    errors: dict[Path, str] = field(default_factory=dict)  # a sentence for each finished run that cannot be used
    _outcomes: dict[Path, RunOutcome | None] = field(default_factory=dict)

    def outcome(self, run: RunRecipe, seed: int) -> RunOutcome | None:
        """Return the outcome of a finished run; None if it is not finished, or damaged."""
        planned = planned_run(self.exhibit, self.options, run, seed)
        if planned.folder not in self._outcomes:
            self._outcomes[planned.folder] = None
            try:
                if planned.status == "finished":
                    self._outcomes[planned.folder] = RunOutcome.from_record(read_run(planned.folder))
            except ValueError as error:
                self.errors[planned.folder] = str(error)
        return self._outcomes[planned.folder]

    def centralized_baseline(self, row: ExhibitRow, seed: int) -> float | None:
        """Return the centralized accuracy that the row's relative accuracies refer to."""
        if (run := row.centralized_baseline) is None or (outcome := self.outcome(run, seed)) is None:
            return None
        return self._value(AfterRounds("accuracy"), outcome, run, seed)

    def baseline_note(self, row: ExhibitRow) -> str:
        """Return a sentence with the centralized accuracy that the row's relative accuracies refer to."""
        accuracies = [self.centralized_baseline(row, seed) for seed in self.options.seeds_of(self.exhibit)]
        texts = [f"{accuracy:.2%}".replace("%", " %") for accuracy in accuracies if accuracy is not None]
        return f"Relative to a centralized accuracy of {', '.join(texts)}." if texts else ""

    def _baseline_caveats(self, row: ExhibitRow, seed: int) -> tuple[str, ...]:
        outcome = None if row.centralized_baseline is None else self.outcome(row.centralized_baseline, seed)
        return () if outcome is None else outcome.caveats

    @cached_property
    def tag(self) -> str:
        """How the runs and their data differ from the paper's; empty if they do not."""
        measured = [
            self.outcome(run, seed) for run in self.exhibit.runs for seed in self.options.seeds_of(self.exhibit)
        ]
        caveats = [outcome.caveats for outcome in measured if outcome is not None]
        caveats += [population.caveats for population in self.populations.values()]
        num_synthetic = sum(SYNTHETIC in of_one for of_one in caveats)
        if not num_synthetic or self.options.synthetic:
            return self.options.tag
        data = ON_SYNTHETIC_DATA if num_synthetic == len(caveats) else f"some {ON_SYNTHETIC_DATA}"
        return ", ".join(filter(None, [self.options.tag, data]))

    @property
    def disclaimer(self) -> str:
        """What is not compared, and why; empty if the runs and their data are the paper's."""
        if self.tag and (self.options.tag or not self.tag.startswith("some")):
            return f"These runs are {self.tag}, not the paper's: nothing is compared."
        return f"These runs are {self.tag}: those are not compared." if self.tag else ""

    def best_runs(self, row: ExhibitRow, metric: Metric) -> list[BestRun]:
        """Return the row's best run for each seed that has one."""
        scaled, seeds = self.options.scale_metric(metric), self.options.seeds_of(self.exhibit)
        return [run for seed in seeds if (run := self._best_run(row, scaled, seed)) is not None]

    def has_diverged(self, row: ExhibitRow) -> bool:
        """Return whether every run of a row has diverged."""
        runs = planned_runs(replace(self.exhibit, rows=(replace(row, centralized_baseline=None),)), self.options)
        return {run.status for run in runs} == {"diverged"}

    def _best_run(self, row: ExhibitRow, metric: Metric, seed: int) -> BestRun | None:
        baseline, candidates = self.centralized_baseline(row, seed), []
        for run in row.runs:
            if (outcome := self.outcome(run, seed)) is not None:
                caveats = tuple(dict.fromkeys((*outcome.caveats, *self._baseline_caveats(row, seed))))
                outcome = replace(outcome, centralized_baseline=baseline, caveats=caveats)
                if (value := self._value(metric, outcome, run, seed)) is not None:
                    candidates.append(BestRun(value, outcome, run, evaluation_gap(metric, outcome)))
        return max(candidates, key=lambda candidate: candidate.value, default=None)

    def _value(self, metric: Metric, outcome: RunOutcome, run: RunRecipe, seed: int) -> float | None:
        """Return the metric of a run; if it cannot be computed, record an error and return None."""
        try:
            return metric.compute(outcome)
        except ValueError as error:
            folder = planned_run(self.exhibit, self.options, run, seed).folder
            self.errors[folder] = f"{folder}: {error}"
            return None
