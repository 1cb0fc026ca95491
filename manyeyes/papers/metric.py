"""The metrics of the papers, of a finished run: relative accuracy, accuracy at a budget, rounds to a target, ..."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from manyeyes.metrics import Curve, relative_accuracy
from manyeyes.training.result import curve
from manyeyes.training.run_files import Event
from manyeyes.training.run_folder import read_events

LEAST = 20  # rounds, or batches of a budget, that are left however small a run is made
FIRST = 0.1  # the relative accuracy whose rounds are the unit of table 5's multiples (Hsu et al. 2020)


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """What a run left behind, and the accuracy of the centralised run that it is compared with."""

    events: list[Event]
    class_scores: Mapping[str, float] = field(default_factory=dict)  # AP, or accuracy where labels are single
    class_counts: Mapping[str, int] = field(default_factory=dict)  # evaluated examples that have the class
    user_scores: tuple[float, ...] = ()  # the same of each user
    centralized_baseline: float | None = None

    @staticmethod
    def from_folder(folder: Path, bound: float | None = None) -> RunOutcome:
        """From a run folder."""
        classes = _table(folder / "per_class.csv")
        try:
            return RunOutcome(
                read_events(folder / "metrics.jsonl"),
                {row[0]: float(row[2]) for row in classes},
                {row[0]: int(row[1]) for row in classes},
                tuple(float(row[2]) for row in _table(folder / "per_user.csv")),
                bound,
            )
        except (ValueError, IndexError, OSError) as error:
            raise ValueError(f"{folder} is damaged ({error}): remove it, and it is run anew") from error

    def curve(self, metric: str) -> Curve:
        return curve(self.events, metric)

    def with_baseline(self, bound: float | None) -> RunOutcome:
        """The same, compared with that centralised accuracy."""
        return replace(self, centralized_baseline=bound)


@dataclass(frozen=True)
class Final:
    """A metric after the last round."""

    metric: str

    def __str__(self) -> str:
        return self.metric

    def compute(self, outcome: RunOutcome) -> float | None:
        return float(outcome.curve(self.metric).values_E[-1])


@dataclass(frozen=True)
class AfterRounds:
    """A metric after so many rounds."""

    metric: str
    rounds: int

    def __str__(self) -> str:
        return f"{self.metric} after {self.rounds:,} rounds"

    def compute(self, outcome: RunOutcome) -> float | None:
        return outcome.curve(self.metric).value_at_round(self.rounds)


@dataclass(frozen=True)
class WithinBatches:
    """A metric when the largest clients of the rounds so far have taken so many batches."""

    metric: str
    batches: int

    def __str__(self) -> str:
        return f"{self.metric} within {self.batches:,} batches"

    def compute(self, outcome: RunOutcome) -> float | None:
        return outcome.curve(self.metric).value_at_batches(self.batches)


@dataclass(frozen=True)
class Relative:
    """Acc_federated / Acc_centralised, after so many rounds or (0) the last."""

    rounds: int = 0

    def __str__(self) -> str:
        return "relative accuracy" + (f" after {self.rounds:,} rounds" if self.rounds else "")

    def compute(self, outcome: RunOutcome) -> float | None:
        reached = AfterRounds("accuracy", self.rounds) if self.rounds else Final("accuracy")
        value = reached.compute(outcome)
        return (
            None
            if value is None or outcome.centralized_baseline is None
            else relative_accuracy(value, outcome.centralized_baseline)
        )


@dataclass(frozen=True)
class RoundsTo:
    """Rounds until the relative accuracy first reaches a share; infinite where it never does."""

    fraction: float

    def __str__(self) -> str:
        return f"rounds to {self.fraction:.0%} relative accuracy"

    def compute(self, outcome: RunOutcome) -> float | None:
        if outcome.centralized_baseline is None:
            return None
        rounds = outcome.curve("accuracy").rounds_to(self.fraction * outcome.centralized_baseline)
        return math.inf if rounds is None else rounds


@dataclass(frozen=True)
class Multiple:
    """Rounds to a relative accuracy, as a multiple of those to 10 %."""

    fraction: float

    def __str__(self) -> str:
        return f"rounds to {self.fraction:.0%}, over those to {FIRST:.0%}"

    def compute(self, outcome: RunOutcome) -> float | None:
        rounds, first = RoundsTo(self.fraction).compute(outcome), RoundsTo(FIRST).compute(outcome)
        return rounds / first if rounds is not None and first and math.isfinite(rounds) else None


@dataclass(frozen=True)
class ClassMetric:
    """The AP of one class; none where nothing that was evaluated has it."""

    label: str

    def __str__(self) -> str:
        return f"AP of {self.label}"

    def compute(self, outcome: RunOutcome) -> float | None:
        return outcome.class_scores.get(self.label) if outcome.class_counts.get(self.label) else None


@dataclass(frozen=True)
class Frequency:
    """How the AP of a class goes with how common it is: correlation of AP with the logarithm of the count."""

    def __str__(self) -> str:
        return "correlation of a class's AP and log count"

    def compute(self, outcome: RunOutcome) -> float | None:
        seen = [label for label, count in outcome.class_counts.items() if count]
        scores = [outcome.class_scores[label] for label in seen]
        counts = np.log10([outcome.class_counts[label] for label in seen])
        if len(seen) < 2 or np.ptp(scores) == 0 or np.ptp(counts) == 0:
            return None
        return float(np.corrcoef(scores, counts)[0, 1])


@dataclass(frozen=True)
class UserQuantile:
    """A quantile of the users' own scores."""

    percent: int

    def __str__(self) -> str:
        return f"users' AP, {self.percent} % quantile"

    def compute(self, outcome: RunOutcome) -> float | None:
        return float(np.percentile(outcome.user_scores, self.percent)) if outcome.user_scores else None


Metric = Final | AfterRounds | WithinBatches | Relative | RoundsTo | Multiple | ClassMetric | Frequency | UserQuantile


def scaled(measure: Metric, factor: float) -> Metric:
    """The same measure of a run whose rounds were multiplied by the factor: its budget is multiplied too."""
    named = {name: getattr(measure, name, 0) for name in ("rounds", "batches")}
    budgets = {name: shrunk(count, factor, LEAST) for name, count in named.items() if count}
    return replace(measure, **budgets)  # type: ignore[arg-type]  # those that have one


def shrunk(count: int, factor: float, least: int) -> int:
    """So many times the factor; at least `least`, or as many as there were."""
    return max(min(least, count), round(count * factor))


def _table(path: Path) -> list[list[str]]:
    """The rows of a CSV without its head; none where a run wrote no such table."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]
