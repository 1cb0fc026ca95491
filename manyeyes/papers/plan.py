"""What has to be run for a table or figure, where it is kept, and how far it has come."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from yaml import CSafeLoader

from manyeyes.config.compose import quote_override
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, RunRecipe
from manyeyes.papers.metric import AfterRounds, Metric, Relative, scaled
from manyeyes.papers.scaling import cut, on_synthetic_data, scale
from manyeyes.training.run_files import (
    CHECKPOINT_FILE,
    DIVERGED_FILE,
    METRICS_FILE,
    Status,
    read_last_event,
    read_status,
)

# What a run may have of its own.
OWN = ("engine", "track", "evaluate_every", "evaluate_early", "checkpoint_seconds", "data.path")


@dataclass(frozen=True)
class ReproduceOptions:
    """How a person wants an item reproduced; the defaults are the paper's."""

    scale: float = 1.0
    synthetic: bool = False
    rounds: int = 0  # at most so many; 0: as many as the paper
    seeds: int = 0  # 0: as many as the paper
    rows: tuple[str, ...] = ()  # names, or parts of names, of the rows that are wanted; none: all
    grid_filter: tuple[str, ...] = ()  # how the names of the wanted runs of a row end, with *, ? and [...]; none: all
    folder: Path = Path("runs")
    data: Path | None = None  # the folder of the stores, or the one store; None: where the recipes have them
    extra: tuple[str, ...] = ()  # settings of the machine and of evaluation, for each run

    def __post_init__(self) -> None:
        for name in ("rounds", "seeds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1, or 0 for the paper's")

    @property
    def tag(self) -> str:
        """What is said wherever a result is not of the paper's own runs."""
        said = [f"scaled by {self.scale:g}"] if self.scale != 1 else []
        said += [f"cut at {self.rounds} rounds"] if self.rounds else []
        return ", ".join([*said, "on stand-ins"] if self.synthetic else said)

    @property
    def disclaimer(self) -> str:
        """Why nothing is compared; empty where it is."""
        return f"These runs are {self.tag}, not the paper's: nothing is compared." if self.tag else ""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The words of the command that ask for this."""
        given = [*(f"row={row}" for row in self.rows), *(f"grid={name}" for name in self.grid_filter)]
        given += [f"scale={self.scale:g}"] if self.scale != 1 else []
        given += ["stand_in=true"] if self.synthetic else []
        given += [f"{name}={getattr(self, name)}" for name in ("rounds", "seeds") if getattr(self, name)]
        return (*given, *([f"data={self.data}"] if self.data else []), *self.extra)

    def apply(self, run: RunRecipe) -> RunRecipe:
        return _placed(
            cut(scale(on_synthetic_data(run) if self.synthetic else run, self.scale), self.rounds), self.data
        )

    def measure(self, measure: Metric) -> Metric:
        """What is measured in place of what the paper measured; of a run that is cut, at its end at the latest."""
        smaller = scaled(measure, self.scale)
        if isinstance(smaller, AfterRounds | Relative) and smaller.rounds > self.rounds > 0:
            return replace(smaller, rounds=self.rounds)
        return smaller


@dataclass(frozen=True)
class PlannedRun:
    """One training, with one seed."""

    run: RunRecipe
    seed: int
    folder: Path

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.run.settings, f"seed={self.seed}")

    def overrides(self, extra: Sequence[str] = ()) -> list[str]:
        """What follows `manyeyes run`."""
        return [*map(quote_override, self.settings), *extra, quote_override(f"folder={self.folder}")]

    @property
    def mismatch(self) -> str:
        """How the run that is kept here differs from this one, as one of an earlier version may; else nothing."""
        kept = self.folder / "config.yaml"
        has = _settings(kept, kept.stat().st_mtime_ns) if kept.exists() else {}
        for word in self.settings:
            name, _, value = word.partition("=")
            found = has.get(f"{name}.name", has.get(name))  # algorithm=fedavg chooses algorithm.name
            if found is not None and not name.startswith(OWN) and not _same(found, value):
                return f"this run was made with {name}={found} and not {value}: remove it, and it is run anew"
        return ""

    @property
    def status(self) -> Status | Literal["other"]:
        """The status of the run in the folder; "other" if that run has other settings."""
        return "other" if self.mismatch else read_status(self.folder, planned_rounds=self.wanted)[0]

    @property
    def can_resume(self) -> bool:
        return (self.folder / CHECKPOINT_FILE).exists()

    @property
    def wanted(self) -> int:
        """How many rounds it has in all."""
        return int(self.run.setting("rounds") or 0)

    @property
    def rounds(self) -> int:
        """How many rounds have been played."""
        return int(last["round"]) if (last := read_last_event(self.folder / METRICS_FILE)) else 0

    def reset(self) -> None:
        """Make it one that can begin anew."""
        for name in (DIVERGED_FILE, CHECKPOINT_FILE):
            (self.folder / name).unlink(missing_ok=True)


def select_rows(item: Exhibit, how: ReproduceOptions) -> Exhibit:
    """The item with the rows that were asked for, by their names or else by a part of them, and their runs."""
    names = [row.name for row in item.rows]
    found = {part: [part] if part in names else [name for name in names if part in name] for part in how.rows}
    if unknown := [part for part in how.rows if not found[part]]:
        raise ValueError(f"{item.key} has no row like {' or '.join(unknown)}: it has {'; '.join(names[:8])}; ...")
    asked = {name for some in found.values() for name in some}
    rows = tuple(row for row in item.rows if not how.rows or row.name in asked)
    if how.grid_filter:
        known = [run.name for row in rows if len(row.runs) > 1 for run in row.runs]
        if unknown := [name for name in how.grid_filter if not any(_ends_like(run, name) for run in known)]:
            some = f"it has {', '.join(known[:3])}, ..." if known else "its rows have one run each"
            raise ValueError(f"{item.key} has no run like {' or '.join(unknown)}: {some}")
        rows = tuple(replace(row, runs=runs) for row in rows if (runs := _of_grid(row, how.grid_filter)))
    if how.data and (how.data.is_file() or (how.data / "meta.json").exists()):
        paths = sorted({store.path for store in replace(item, rows=rows).stores})
        if len(paths) > 1:
            raise ValueError(f"data is one store and {item.key} needs {len(paths)}: give the folder that has them all")
    return replace(item, rows=rows)


def seeds(item: Exhibit, how: ReproduceOptions) -> range:
    return range(how.seeds or item.seeds)


def job(item: Exhibit, how: ReproduceOptions, run: RunRecipe, seed: int) -> PlannedRun:
    """Runs of a paper are kept by their names, so that its tables and figures share them."""
    marked = how.tag.replace(" ", "_").replace(",", "")
    return PlannedRun(
        how.apply(run), seed, Path(how.folder, item.paper, *([marked] if marked else []), run.name, str(seed))
    )


def jobs(item: Exhibit, how: ReproduceOptions) -> Iterator[PlannedRun]:
    """Every training that the item needs, bounds first, one seed after the other."""
    for seed in seeds(item, how):
        for run in item.runs:
            yield job(item, how, run, seed)


def dataset_run(row: ExhibitRow, store: DatasetRecipe, how: ReproduceOptions) -> RunRecipe:
    """The dataset that a row shows, as the settings that would train on it."""
    task = (f"data.task={store.task}",) if store.task else ()
    return how.apply(RunRecipe(row.name, (f"data={store.options[0]}", f"data.path={store.path}", *task), store))


def _of_grid(row: ExhibitRow, patterns: tuple[str, ...]) -> tuple[RunRecipe, ...]:
    """The runs that are wanted of a row; a row with a single run has no grid."""
    if len(row.runs) < 2:
        return row.runs
    return tuple(run for run in row.runs if any(_ends_like(run.name, pattern) for pattern in patterns))


def _ends_like(name: str, pattern: str) -> bool:
    return fnmatch(name, f"*{pattern}")


def _placed(run: RunRecipe, data: Path | None) -> RunRecipe:
    """The run with its store where the person has it."""
    if data is None or run.store is None:
        return run
    alone = data.is_file() or (data / "meta.json").exists()
    path = str(data if alone else data / Path(run.store.path).name)
    words = tuple(f"data.path={path}" if word.startswith("data.path=") else word for word in run.settings)
    return replace(run, settings=words, store=replace(run.store, path=path))


@lru_cache(maxsize=4096)
def _settings(path: Path, changed: int) -> dict[str, str]:
    """Those of a run by their full names; none of a file that is damaged."""
    try:
        nested = yaml.load(path.read_bytes(), CSafeLoader)
    except (yaml.YAMLError, OSError):
        return {}
    flat: dict[str, str] = {}
    stack = [("", nested)]
    while stack:
        prefix, node = stack.pop()
        if isinstance(node, dict):
            stack += [(f"{prefix}.{name}" if prefix else str(name), value) for name, value in node.items()]
        else:
            flat[prefix] = str(node)
    return flat


def _same(found: str, asked: str) -> bool:
    """Whether two words mean the same value, numbers and lists of them in whichever form."""
    one, other = (yaml.load(text, CSafeLoader) for text in (found.replace("'", ""), asked))
    try:
        return bool(np.array_equal(np.array(one, float), np.array(other, float)))
    except (ValueError, TypeError):
        return str(one) == str(other)
