"""What a paper shows, as data: tables and figures, their rows, the runs behind them and the numbers that it printed."""

import shlex
from dataclasses import dataclass, field

from manyeyes.papers.metric import Metric
from manyeyes.papers.statistics import Statistic


@dataclass(frozen=True)
class PrintedValue:
    """A number as a paper printed it."""

    value: float
    unit: str  # %, rounds, images, ...; empty: a share of 1
    where: str  # its table, row and column, or the sentence that says it, in quotes
    spread: float | None = None  # standard deviation over seeds, where it is printed
    tolerance: float | None = None  # read off a plot, and right within so much
    beyond: bool = False  # the paper says only that it is larger

    @property
    def plain(self) -> float:
        """The value in the unit of our own metrics, which are shares of 1 and not per cent."""
        return self.value / 100 if self.unit == "%" else self.value

    def __str__(self) -> str:
        text = f"{'> ' if self.beyond else ''}{self.value:,g}"
        if self.spread is not None:
            text += f" ± {self.spread:g}"
        if self.tolerance is not None:
            text += f" (read off a plot, ± {self.tolerance:g})"
        return f"{text} {self.unit}".rstrip()


Expected = dict[Metric | Statistic, PrintedValue | None]  # None: the paper prints no number for it


@dataclass(frozen=True)
class DatasetRecipe:
    """A prepared dataset: its folder, and the words of `manyeyes data prepare` that make it."""

    path: str
    options: tuple[str, ...]
    task: str = ""  # which of its labels; empty: those that come first

    @property
    def prepare(self) -> str:
        return shlex.join(["manyeyes", "data", "prepare", *self.options, "--out", self.path])

    @property
    def show(self) -> str:
        task = ["--task", self.task] if self.task else []
        return shlex.join(["manyeyes", "data", "show", self.path, *task])


@dataclass(frozen=True)
class RunRecipe:
    """One training: its settings are words of `manyeyes run`, all but the seed and the folder."""

    name: str  # no other run of the paper has it, unless it is the same run
    settings: tuple[str, ...]
    store: DatasetRecipe | None  # None: it reads no prepared dataset
    changes: tuple[str, ...] = ()  # sentences that say how it differs from the paper's, where it was scaled or replaced

    @property
    def command(self) -> str:
        return shlex.join(["manyeyes", "run", *self.settings])

    def setting(self, name: str) -> str | None:
        """What a setting was given; None where its default holds."""
        return dict(word.split("=", 1) for word in self.settings).get(name)


@dataclass(frozen=True)
class ExhibitRow:
    """A row of a table, or a curve or point of a figure; where it has several runs the best one counts."""

    name: str
    runs: tuple[RunRecipe, ...] = ()
    expected: Expected = field(default_factory=dict)
    centralized_baseline: RunRecipe | None = None  # the centralised run that accuracies are relative to
    stores: tuple[DatasetRecipe, ...] = ()  # what is shown of data


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper."""

    paper: str
    name: str  # table1, figure2, ...
    title: str
    rows: tuple[ExhibitRow, ...]
    claim: str  # what the paper says of it
    note: str = ""  # what the paper leaves open, and what is done here
    seeds: int = 1  # how often the paper ran each

    @property
    def kind(self) -> str:
        return self.name.rstrip("0123456789")

    @property
    def key(self) -> str:
        return f"{self.paper}.{self.name}"

    @property
    def runs(self) -> tuple[RunRecipe, ...]:
        """Every run once, centralised bounds first."""
        bounds = (row.centralized_baseline for row in self.rows if row.centralized_baseline is not None)
        return tuple(dict.fromkeys([*bounds, *(run for row in self.rows for run in row.runs)]))

    @property
    def stores(self) -> tuple[DatasetRecipe, ...]:
        """Every dataset once that is trained on or shown."""
        trained = (run.store for run in self.runs if run.store is not None)
        return tuple(dict.fromkeys([*(store for row in self.rows for store in row.stores), *trained]))


def cells(text: str) -> list[list[str]]:
    """A table typed as text: a line a row, cells apart by spaces; the first line is the head."""
    return [line.split() for line in text.strip().splitlines()]
