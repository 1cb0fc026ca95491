"""The metrics that the papers print, computed from a finished run: relative accuracy, rounds to a target, ..."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from manyeyes.metrics import Curve, relative_accuracy
from manyeyes.training.result import curve
from manyeyes.training.run_files import METRICS_FILE, PER_CLASS_FILE, PER_USER_FILE, Event
from manyeyes.training.run_record import RunRecord

MIN_BUDGET = 20  # rounds or batches that are left of a budget, however much a run is scaled down
UNIT_FRACTION = 0.1  # the relative accuracy whose rounds are the unit of table 5's multiples (Hsu et al. 2020)


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """What a metric is computed from: the events and scores of a run, and the accuracy of its centralized baseline."""

    events: Sequence[Event]
    class_scores: Mapping[str, float] = field(default_factory=dict)  # AP at 200 thresholds; of single labels accuracy
    class_counts: Mapping[str, int] = field(default_factory=dict)  # evaluated examples with the class
    user_scores: tuple[float, ...] = ()
    mean_emd: float | None = None  # of the training clients' label distributions
    centralized_baseline: float | None = None
    caveats: tuple[str, ...] = ()  # of the data of the run and its baseline
    exact_class_ap: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def from_record(record: RunRecord) -> RunOutcome:
        """Return the outcome of a run; a run whose metrics are damaged raises ValueError."""
        files = (METRICS_FILE, PER_CLASS_FILE, PER_USER_FILE)
        if problems := [problem for problem in record.problems if any(file in problem for file in files)]:
            raise ValueError(f"{record.folder} is damaged ({'; '.join(problems)}): remove it to run it again.")
        classes = record.class_rows
        scores = {row["class"]: row.get("ap_200" if "ap" in row else "accuracy") for row in classes}
        users = [list(row.values()) for row in record.user_rows]
        return RunOutcome(
            record.events,
            {label: float(score) for label, score in scores.items() if score is not None},
            {row["class"]: int(row["examples"]) for row in classes},
            tuple(float(score) for _, _, score, *_ in users),
            record.dataset_stats.get("splits", {}).get("train", {}).get("mean_emd"),
            caveats=record.caveats,
            exact_class_ap={row["class"]: float(row["ap"]) for row in classes if "ap" in row},
        )

    def curve(self, metric: str) -> Curve:
        return curve(self.events, metric)


@dataclass(frozen=True)
class AfterRounds:
    """A metric after a number of rounds, or after the last one."""

    metric: str
    rounds: int | None = None
    relative: bool = False  # to the centralized baseline: Acc_federated / Acc_centralized

    def __str__(self) -> str:
        budget = "" if self.rounds is None else f" after {self.rounds:,} rounds"
        return f"{'relative ' if self.relative else ''}{self.metric}{budget}"

    def compute(self, outcome: RunOutcome) -> float | None:
        curve, baseline = outcome.curve(self.metric), outcome.centralized_baseline
        value = float(curve.values_E[-1]) if self.rounds is None else curve.value_at_round(self.rounds)
        if not self.relative or value is None:
            return value
        return relative_accuracy(value, baseline) if baseline else None


def relative_after(rounds: int | None = None) -> AfterRounds:
    return AfterRounds("accuracy", rounds, relative=True)


@dataclass(frozen=True)
class WithinBatches:
    """A metric when the largest clients of all rounds so far have trained on a number of batches."""

    metric: str
    batches: int

    def __str__(self) -> str:
        return f"{self.metric} within {self.batches:,} batches"

    def compute(self, outcome: RunOutcome) -> float | None:
        return outcome.curve(self.metric).value_at_batches(self.batches)


@dataclass(frozen=True)
class RoundsTo:
    """The rounds until the relative accuracy first reaches a fraction; infinite if it never does.

    None if there is no centralized baseline, or one of accuracy 0.
    """

    fraction: float

    def __str__(self) -> str:
        return f"rounds to {self.fraction:.0%} relative accuracy"

    def compute(self, outcome: RunOutcome) -> float | None:
        if not outcome.centralized_baseline:
            return None
        rounds = outcome.curve("accuracy").rounds_to(self.fraction * outcome.centralized_baseline)
        return math.inf if rounds is None else rounds


@dataclass(frozen=True)
class Multiple:
    """The rounds to a relative accuracy as a multiple of the rounds to 10 %."""

    fraction: float

    def __str__(self) -> str:
        return f"rounds to {self.fraction:.0%}, over those to {UNIT_FRACTION:.0%}"

    def compute(self, outcome: RunOutcome) -> float | None:
        rounds, unit = RoundsTo(self.fraction).compute(outcome), RoundsTo(UNIT_FRACTION).compute(outcome)
        return rounds / unit if rounds is not None and unit and math.isfinite(rounds) else None


@dataclass(frozen=True)
class ClassMetric:
    """The AP of one class, at the 200 thresholds of FLAIR's benchmark or exact; None if no evaluated example has it."""

    label: str
    is_exact: bool = False

    def __str__(self) -> str:
        return f"{'exact ' if self.is_exact else ''}AP of {self.label}"

    def compute(self, outcome: RunOutcome) -> float | None:
        scores = outcome.exact_class_ap if self.is_exact else outcome.class_scores
        return scores.get(self.label) if outcome.class_counts.get(self.label) else None


@dataclass(frozen=True)
class Frequency:
    """The correlation of the classes' AP with the logarithm of their counts."""

    def __str__(self) -> str:
        return "correlation of a class's AP and log count"

    def compute(self, outcome: RunOutcome) -> float | None:
        labels = [label for label, count in outcome.class_counts.items() if count]
        scores = [outcome.class_scores[label] for label in labels]
        log_counts = np.log10([outcome.class_counts[label] for label in labels])
        if len(labels) < 2 or np.ptp(scores) == 0 or np.ptp(log_counts) == 0:
            return None
        return float(np.corrcoef(scores, log_counts)[0, 1])


@dataclass(frozen=True)
class UserQuantile:
    """A quantile of the users' scores."""

    percent: int

    def __str__(self) -> str:
        return f"users' AP, {self.percent} % quantile"

    def compute(self, outcome: RunOutcome) -> float | None:
        return float(np.percentile(outcome.user_scores, self.percent)) if outcome.user_scores else None


Metric = AfterRounds | WithinBatches | RoundsTo | Multiple | ClassMetric | Frequency | UserQuantile


def is_relative(metric: Metric) -> bool:
    """Return whether a metric refers to the accuracy of centralized training."""
    return isinstance(metric, RoundsTo | Multiple) or (isinstance(metric, AfterRounds) and metric.relative)


def scale_budget(metric: Metric, factor: float) -> Metric:
    """Return the metric for a run whose rounds were multiplied by a factor: its budget is multiplied too."""
    if isinstance(metric, AfterRounds) and metric.rounds is not None:
        return replace(metric, rounds=shrink(metric.rounds, factor, MIN_BUDGET))
    if isinstance(metric, WithinBatches):
        return replace(metric, batches=shrink(metric.batches, factor, MIN_BUDGET))
    return metric


def shrink(count: int, factor: float, minimum: int) -> int:
    """Return a count times a factor, but at least the minimum, or the count itself if that is smaller."""
    return max(min(minimum, count), round(count * factor))
