"""The results of an exhibit's runs: their outcomes, and for each row and seed the best run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from manyeyes.core.population import Population
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, RunRecipe
from manyeyes.papers.metric import AfterRounds, Metric, RunOutcome
from manyeyes.papers.plan import ReproduceOptions, planned_run, planned_runs
from manyeyes.papers.timing import EvaluationGap, evaluation_gap
from manyeyes.training.run_record import read_run


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
                outcome = replace(outcome, centralized_baseline=baseline)
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
