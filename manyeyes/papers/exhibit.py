"""Tables and figures of papers as data: their rows, the runs behind each row and the numbers that the paper printed."""

import shlex
from dataclasses import dataclass, field
from typing import Any

from manyeyes.papers.metric import Metric
from manyeyes.papers.statistics import Statistic

MAX_DEVIATIONS = 2  # of the paper's own standard deviations, where it prints them
MIN_POINTS = 0.1  # percentage points: the last printed digit
ACCURACY_POINTS = 2.0  # percentage points, for a single run
ROUNDS_RTOL = 0.1  # of the paper's rounds, and of multiples of rounds
RULE_TEXT = (
    f"Within: at most {MAX_DEVIATIONS} of the paper's standard deviations (and {MIN_POINTS} points) where it prints "
    f"them; otherwise {ACCURACY_POINTS:g} points of an accuracy, plus the reading error of a number read off a plot; "
    f"{ROUNDS_RTOL:.0%} of a number of rounds; and what is counted in a dataset must round to the printed number."
)


@dataclass(frozen=True)
class PrintedValue:
    """A number as a paper printed it."""

    value: float
    unit: str  # %, rounds, images, ...; empty: a fraction of 1
    source: str  # its table, row and column, or the sentence in quotation marks
    std: float | None = None  # over seeds, where the paper prints it
    reading_error: float | None = None  # of a number that was read off a plot
    is_lower_bound: bool = False  # the paper says only that the number is larger

    @property
    def as_fraction(self) -> float:
        """The value in the unit of our own metrics, which are fractions of 1 and not percentages."""
        return self.value / 100 if self.unit == "%" else self.value

    def __str__(self) -> str:
        text = f"{'> ' if self.is_lower_bound else ''}{self.value:,g}"
        if self.std is not None:
            text += f" ± {self.std:g}"
        if self.reading_error is not None:
            text += f" (read off a plot, ± {self.reading_error:g})"
        return f"{text} {self.unit}".rstrip()


Expected = dict[Metric | Statistic, PrintedValue | None]  # None: the paper prints no number for it


def tolerance(metric: Metric | Statistic, printed: PrintedValue) -> float:
    """Return how far the measured value may be from the paper's, in the paper's unit."""
    if isinstance(metric, Statistic):
        decimals = len(f"{printed.value:g}".partition(".")[2])
        return 0.5 * 10**-decimals if decimals or printed.unit == "%" else 0.0
    if printed.std is not None:
        return max(MIN_POINTS, MAX_DEVIATIONS * printed.std)
    if printed.unit in ("rounds", "times"):
        return ROUNDS_RTOL * printed.value
    return ACCURACY_POINTS * (1 if printed.unit == "%" else 0.01) + (printed.reading_error or 0.0)


def is_within(metric: Metric | Statistic, printed: PrintedValue, measured: float) -> bool:
    """Return whether a measured value, in the paper's unit, agrees with the paper's."""
    if printed.is_lower_bound:
        return measured > printed.value
    return abs(measured - printed.value) <= tolerance(metric, printed) + 1e-9


@dataclass(frozen=True)
class DatasetRecipe:
    """A prepared dataset: its folder, and the arguments of `manyeyes data prepare` that create it."""

    path: str
    arguments: tuple[str, ...]
    task: str = ""  # which of its label sets; empty: the first

    @property
    def settings(self) -> str:
        """The settings of `manyeyes run` for this dataset, separated by spaces."""
        return f"data={self.arguments[0]} data.path={self.path}" + (f" data.task={self.task}" if self.task else "")

    @property
    def prepare_command(self) -> str:
        return shlex.join(["manyeyes", "data", "prepare", *self.arguments, "--out", self.path])


@dataclass(frozen=True)
class RunRecipe:
    """One training run as settings of `manyeyes run`, without the seed and the run folder."""

    name: str  # unique among the different runs of a paper
    settings: tuple[str, ...]
    dataset: DatasetRecipe | None  # None: no prepared dataset is read
    changes: tuple[str, ...] = ()  # sentences: how the run differs from the paper's

    @property
    def command(self) -> str:
        return shlex.join(["manyeyes", "run", *self.settings])

    def setting(self, name: str) -> str | None:
        """Return the value of a setting; None if the run uses its default."""
        return dict(override.split("=", 1) for override in self.settings).get(name)

    def count(self, name: str) -> int:
        """Return the value of a setting that is a whole number; 0 if the run uses its default."""
        return int(self.setting(name) or 0)


def make_run(name: str, dataset: DatasetRecipe, settings: str = "") -> RunRecipe:
    """Return a run on a dataset, whose other settings are separated by spaces, as on the command line."""
    return RunRecipe(name, (*dataset.settings.split(), *settings.split()), dataset)


@dataclass(frozen=True)
class ExhibitRow:
    """A row of a table, or a curve or point of a figure; if it has several runs, the best one counts."""

    name: str
    runs: tuple[RunRecipe, ...] = ()
    expected: Expected = field(default_factory=dict)
    centralized_baseline: RunRecipe | None = None  # the run that relative accuracies refer to
    datasets: tuple[DatasetRecipe, ...] = ()  # that the row describes
    same_as: str = ""  # the row whose runs this one's have become, as small cohorts do when they are scaled


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper."""

    paper: str
    name: str  # table1, figure2, ...
    title: str
    rows: tuple[ExhibitRow, ...]
    claim: str  # what the paper concludes from it
    note: str = ""  # what the paper leaves open, and what is done here
    num_seeds: int = 1  # of each run, in the paper
    charts: tuple[dict[str, Any], ...] = field(default=(), compare=False)  # arguments of the functions that draw them
    columns: tuple[tuple[str, Metric], ...] = ()  # of the paper's own table, if it is shown in that shape too

    @property
    def key(self) -> str:
        return f"{self.paper}.{self.name}"

    @property
    def runs(self) -> tuple[RunRecipe, ...]:
        """Every run once, centralized baselines first."""
        baselines = (row.centralized_baseline for row in self.rows if row.centralized_baseline is not None)
        return tuple(dict.fromkeys([*baselines, *(run for row in self.rows for run in row.runs)]))

    @property
    def datasets(self) -> tuple[DatasetRecipe, ...]:
        """Every dataset that is described or trained on, once."""
        trained = (run.dataset for run in self.runs if run.dataset is not None)
        return tuple(dict.fromkeys([*(dataset for row in self.rows for dataset in row.datasets), *trained]))
