"""What has to be run for a table or figure, where it is kept, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from manyeyes.papers.item import Item, Row, Run, Store
from manyeyes.papers.measure import Measure, scaled
from manyeyes.papers.scaling import scale, stand_in
from manyeyes.papers.statistic import Statistic
from manyeyes.run.events import read


@dataclass(frozen=True)
class How:
    """How a person wants an item reproduced; the defaults are the paper's."""

    scale: float = 1.0
    stand_in: bool = False
    seeds: int = 0  # 0: as many as the paper
    rows: tuple[str, ...] = ()  # names, or parts of names, of the rows that are wanted; none: all
    folder: Path = Path("runs")

    @property
    def mark(self) -> str:
        """What is said wherever a result is not of the paper's own runs."""
        said = [f"scaled by {self.scale:g}"] if self.scale != 1 else []
        return ", ".join([*said, "on stand-ins"] if self.stand_in else said)

    def apply(self, run: Run) -> Run:
        return scale(stand_in(run) if self.stand_in else run, self.scale)

    def measure(self, measure: Measure | Statistic) -> Measure | Statistic:
        """What is measured in place of what the paper measured."""
        return measure if isinstance(measure, Statistic) else scaled(measure, self.scale)


@dataclass(frozen=True)
class Job:
    """One training, with one seed."""

    run: Run
    seed: int
    folder: Path

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.run.settings, f"seed={self.seed}")

    @property
    def state(self) -> str:
        """Done, stopped on the way, or missing."""
        if (self.folder / "model.safetensors").exists():
            return "done"
        return "stopped" if (self.folder / "checkpoint.safetensors").exists() else "missing"

    @property
    def rounds(self) -> int:
        """How many rounds have been played."""
        metrics = self.folder / "metrics.jsonl"
        events = read(metrics) if metrics.exists() else []
        return int(events[-1]["round"]) if events else 0


def wanted(item: Item, how: How) -> Item:
    """The item with the rows that were asked for: by their names, or else by a part of them."""
    names = [row.name for row in item.rows]
    asked = {name for part in how.rows for name in ([part] if part in names else [n for n in names if part in n])}
    rows = tuple(row for row in item.rows if not how.rows or row.name in asked)
    if not rows:
        known = ", ".join(row.name for row in item.rows[:8])
        raise ValueError(f"{item.key} has no row like {' or '.join(how.rows)}: it has {known}, ...")
    return replace(item, rows=rows)


def seeds(item: Item, how: How) -> range:
    return range(how.seeds or item.seeds)


def job(item: Item, how: How, run: Run, seed: int) -> Job:
    """Runs of a paper are kept by their names, so that its tables and figures share them."""
    marked = how.mark.replace(" ", "_").replace(",", "")
    return Job(how.apply(run), seed, Path(how.folder, item.paper, *([marked] if marked else []), run.name, str(seed)))


def jobs(item: Item, how: How) -> Iterator[Job]:
    """Every training that the item needs, bounds first, one seed after the other."""
    for seed in seeds(item, how):
        for run in item.runs:
            yield job(item, how, run, seed)


def shown(row: Row, store: Store, how: How) -> Run:
    """The dataset that a row shows, as the settings that would train on it."""
    task = (f"data.task={store.task}",) if store.task else ()
    return how.apply(Run(row.name, (f"data={store.words[0]}", f"data.path={store.path}", *task), store))
