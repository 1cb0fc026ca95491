"""Which runs a table or figure needs, in which folders they are, and how far each one is."""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from manyeyes.config.compose import quote_override
from manyeyes.core.population import SYNTHETIC
from manyeyes.core.registry import check_options, option
from manyeyes.data.store.reader import read_caveats
from manyeyes.io.parsing import parse_yaml
from manyeyes.papers.choices import CHOICES, CIFAR_SCHEDULE, FEDIR_TARGET, FEDVC_REPLACEMENT, OpenChoice, with_answers
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, RunRecipe, make_run
from manyeyes.papers.metric import AfterRounds, Metric, scale_budget
from manyeyes.papers.scaling import cut, on_synthetic_data, scale, with_settings
from manyeyes.training import run_files
from manyeyes.training.run_files import Status, read_last_event, read_status

USER_SETTINGS = (  # of `manyeyes run`: how a run is computed, evaluated and recorded; all others are the paper's
    "engine", "trackers", "evaluate_every", "evaluate_every_fraction", "checkpoint_seconds",
    "client_state_cache_mib",
)  # fmt: skip
LAUNCHERS = ("joblib", "submitit_local", "submitit_slurm")
SCALE_HELP = "smaller runs: rounds and clients times this; images, pixels and centralized epochs times its root"
ON_SYNTHETIC_DATA = "on synthetic data"
FOLDER_TAG = re.compile(r"(?:scaled_by_([\d.e-]+))?_?(?:cut_at_(\d+)_rounds)?_?(on_synthetic_data)?")


def _answer(choice: OpenChoice) -> str:
    """Declare the option of an open choice."""
    declared: str = option(choice.default, choice.help, choices=tuple(choice.answers))
    return declared


@dataclass(frozen=True)
class ReproduceOptions:
    """How an exhibit is reproduced and its runs are trained; the defaults are the paper's."""

    scale: float = option(1.0, SCALE_HELP, above=0, maximum=1)
    synthetic: bool = option(False, "train on synthetic images instead of the datasets")
    rounds: int = option(0, "maximum number of rounds; 0: as in the paper", minimum=0)
    seeds: int = option(0, "number of seeds; 0: as in the paper", minimum=0)
    rows: tuple[str, ...] = option((), "only this row, or the rows with this text in their names; can be repeated")
    grid_filter: tuple[str, ...] = option((), "of grids, only runs whose names end like this pattern; can be repeated")
    folder: Path = option(Path("runs"), "where runs are saved")
    data: Path | None = option(None, "the folder with the prepared datasets, or the only dataset that is needed")
    parallel: int = option(1, "runs at a time, each in its own process with an equal number of cores", minimum=1)
    launcher: str = option("", f"one of Hydra's launchers: {', '.join(LAUNCHERS)}; its settings are launcher.NAME=...")
    retry_diverged: bool = option(False, "train runs that have diverged again, from their beginning")
    fedir_target: str = _answer(FEDIR_TARGET)
    fedvc_replacement: str = _answer(FEDVC_REPLACEMENT)
    cifar_schedule: str = _answer(CIFAR_SCHEDULE)
    launcher_settings: tuple[str, ...] = field(default=(), repr=False)  # launcher.NAME=VALUE
    extra: tuple[str, ...] = field(default=(), repr=False)  # USER_SETTINGS for each run

    def __post_init__(self) -> None:
        check_options(self, "")
        if self.parallel > 1 and self.launcher not in ("", "joblib"):
            raise ValueError(f"parallel={self.parallel} is for this machine: set launcher.* for {self.launcher}.")
        if self.launcher_settings and not self.launcher:
            raise ValueError("launcher.* needs a launcher: choose one with launcher=joblib or another.")

    @property
    def tag(self) -> str:
        """How the runs differ from the paper's; empty if they do not."""
        scaled = f"scaled by {self.scale:g}" if self.scale != 1 else ""
        shorter = f"cut at {self.rounds} rounds" if self.rounds else ""
        return ", ".join(filter(None, [scaled, shorter, ON_SYNTHETIC_DATA if self.synthetic else ""]))

    @property
    def folder_tag(self) -> str:
        return self.tag.replace(",", "").replace(" ", "_")

    @property
    def answers(self) -> dict[str, str]:
        """The answers to the open choices, by the names of the choices."""
        return {choice.name: getattr(self, choice.name) for choice in CHOICES}

    @property
    def other_answers(self) -> dict[str, str]:
        """The answers that are not those of the recipes."""
        return {choice.name: answer for choice in CHOICES if (answer := self.answers[choice.name]) != choice.default}

    @staticmethod
    def from_folder_tag(tag: str, folder: Path) -> "ReproduceOptions | None":
        """Return the options that have a folder tag; None if the text is not a folder tag."""
        if not (match := FOLDER_TAG.fullmatch(tag)):
            return None
        scale, rounds, synthetic = match.groups()
        return ReproduceOptions(float(scale or 1), bool(synthetic), int(rounds or 0), folder=folder)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `manyeyes reproduce` that give these options."""
        filters = [*(f"rows={row}" for row in self.rows), *(f"grid_filter={name}" for name in self.grid_filter)]
        options = {"scale": f"{self.scale:g}" if self.scale != 1 else "", "synthetic": "true" if self.synthetic else ""}
        options |= {name: str(getattr(self, name) or "") for name in ("rounds", "seeds", "data")}
        options |= self.other_answers
        return (*filters, *(f"{name}={text}" for name, text in options.items() if text), *self.extra)

    def seeds_of(self, exhibit: Exhibit) -> range:
        return range(self.seeds or exhibit.num_seeds)

    def apply(self, run: RunRecipe) -> RunRecipe:
        """Return the run that is trained with these options."""
        run = on_synthetic_data(run) if self.synthetic else run
        run = cut(scale(run, self.scale), self.rounds)
        if self.data is None or run.dataset is None:
            return run
        path = str(self.data if is_dataset(self.data) else self.data / Path(run.dataset.path).name)
        return replace(with_settings(run, {"data.path": path}), dataset=replace(run.dataset, path=path))

    def scale_metric(self, metric: Metric) -> Metric:
        """Return what is measured instead of the paper's metric; the end of a run that is cut is the latest budget."""
        scaled = scale_budget(metric, self.scale)
        if isinstance(scaled, AfterRounds) and (scaled.rounds or 0) > self.rounds > 0:
            return replace(scaled, rounds=self.rounds)
        return scaled


@dataclass(frozen=True)
class PlannedRun:
    """One training run with one seed."""

    run: RunRecipe
    seed: int
    folder: Path

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.run.settings, f"seed={self.seed}")

    def overrides(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the arguments of `manyeyes run`."""
        return [*map(quote_override, self.settings), *extra, quote_override(f"folder={self.folder}")]

    @property
    def mismatch(self) -> str:
        """How the run in the folder differs from this one, such as one of an earlier version; empty if it does not."""
        config = self.folder / run_files.CONFIG_FILE
        recorded = _read_config(config, config.stat().st_mtime_ns) if config.exists() else {}
        for override in self.settings:
            name, _, value = override.partition("=")
            old = _lookup(recorded, name)
            if old is not None and not name.startswith((*USER_SETTINGS, "data.path")) and not _is_equal(old, value):
                return f"{name} of this run is {old}, not {value}: remove it to run it again."
        return self._data_mismatch(str(recorded.get(run_files.CAVEATS_KEY) or "")) if recorded else ""

    def _data_mismatch(self, recorded_caveats: str) -> str:
        """Say if the run was trained on synthetic images and the dataset at its path is real, or the reverse."""
        if self.run.dataset is None or not (path := Path(self.run.dataset.path)).exists():
            return ""
        was_synthetic, is_synthetic = (SYNTHETIC in caveats for caveats in (recorded_caveats, read_caveats(path)))
        if was_synthetic == is_synthetic:
            return ""
        kinds = "synthetic images, and those at" if was_synthetic else "other images than the synthetic ones at"
        return (
            f"this run was trained on {kinds} {path}{' are not' if was_synthetic else ''}: remove it to run it again."
        )

    @property
    def status(self) -> Status | Literal["other"]:
        """The status of the run in the folder; "other" if that run has other settings."""
        return "other" if self.mismatch else read_status(self.folder, planned_rounds=self.run.count("rounds"))[0]

    @property
    def can_resume(self) -> bool:
        return (self.folder / run_files.CHECKPOINT_FILE).exists()

    @property
    def rounds(self) -> int:
        """The number of rounds that were trained so far."""
        return int(event["round"]) if (event := read_last_event(self.folder / run_files.METRICS_FILE)) else 0

    def reset(self) -> None:
        """Let a run that has diverged start again from its beginning."""
        for name in (run_files.DIVERGED_FILE, run_files.CHECKPOINT_FILE):
            (self.folder / name).unlink(missing_ok=True)


def select_rows(exhibit: Exhibit, options: ReproduceOptions) -> Exhibit:
    """Return the exhibit with the selected rows, and of their grids the selected runs."""
    names = [row.name for row in exhibit.rows]
    matches = {part: [part] if part in names else [name for name in names if part in name] for part in options.rows}
    if unknown := [part for part in options.rows if not matches[part]]:
        raise ValueError(f"{exhibit.key} has no row like {' or '.join(unknown)}: it has {'; '.join(names[:8])}; ...")
    selected = set(chain.from_iterable(matches.values())) or names
    exhibit = replace(exhibit, rows=tuple(row for row in exhibit.rows if row.name in selected))
    exhibit = with_answers(exhibit, options.answers)
    if options.grid_filter:
        exhibit = _filter_grids(exhibit, options.grid_filter)
    num_datasets = len({dataset.path for dataset in exhibit.datasets})
    if options.data and is_dataset(options.data) and num_datasets > 1:
        reason = f"is one dataset and {exhibit.key} needs {num_datasets}"
        raise ValueError(f"data={options.data} {reason}: give the folder with all of them.")
    return merge_equal_rows(exhibit, options)


def merge_equal_rows(exhibit: Exhibit, options: ReproduceOptions) -> Exhibit:
    """Return the exhibit with only one of the rows whose runs differ in the paper and, with these options, no longer."""
    first_rows: dict[frozenset[tuple[str, ...]], ExhibitRow] = {}
    rows = []
    for row in exhibit.rows:
        first = first_rows.setdefault(frozenset(map(_decisive_settings, map(options.apply, row.runs))), row)
        is_new = not row.runs or {run.name for run in first.runs} == {run.name for run in row.runs}
        rows.append(row if is_new else replace(row, runs=(), same_as=first.name))
    return replace(exhibit, rows=tuple(rows))


def _decisive_settings(run: RunRecipe) -> tuple[str, ...]:
    """Return the settings of a run that change its model, and not only when it is evaluated."""
    return tuple(setting for setting in run.settings if not setting.startswith("evaluate_every"))


def _filter_grids(exhibit: Exhibit, patterns: tuple[str, ...]) -> Exhibit:
    """Return the exhibit with the runs of grids whose names end like a pattern, and without rows that have none."""
    names = [run.name for row in exhibit.rows if len(row.runs) > 1 for run in row.runs]
    matches = {pattern: fnmatch.filter(names, f"*{pattern}") for pattern in patterns}
    if unknown := [pattern for pattern in patterns if not matches[pattern]]:
        known = f"it has {', '.join(names[:3])}, ..." if names else "its rows have one run each"
        raise ValueError(f"{exhibit.key} has no run like {' or '.join(unknown)}: {known}.")
    selected = set(chain.from_iterable(matches.values()))
    runs = [tuple(run for run in row.runs if len(row.runs) == 1 or run.name in selected) for row in exhibit.rows]
    rows = (replace(row, runs=left) for row, left in zip(exhibit.rows, runs, strict=True) if left or row.datasets)
    return replace(exhibit, rows=tuple(rows))


def is_dataset(path: Path) -> bool:
    """Return whether a path is one prepared dataset, and not a folder of several."""
    return path.is_file() or (path / "meta.json").exists()


def planned_run(exhibit: Exhibit, options: ReproduceOptions, run: RunRecipe, seed: int) -> PlannedRun:
    """Return a run in its folder, which the run's name decides: the tables and figures of a paper share their runs."""
    folder = Path(options.folder, exhibit.paper, options.folder_tag, run.name, str(seed))
    return PlannedRun(options.apply(run), seed, folder)


def planned_runs(exhibit: Exhibit, options: ReproduceOptions) -> Iterator[PlannedRun]:
    """Yield every run that the exhibit needs, centralized baselines first, one seed after the other."""
    for seed in options.seeds_of(exhibit):
        for run in exhibit.runs:
            yield planned_run(exhibit, options, run, seed)


def described_datasets(exhibit: Exhibit, options: ReproduceOptions) -> Iterator[tuple[DatasetRecipe, RunRecipe]]:
    """Yield each dataset that a row describes, and a run with the row's name that would train on it."""
    for row in exhibit.rows:
        for dataset in row.datasets:
            yield dataset, options.apply(make_run(row.name, dataset))


@lru_cache(maxsize=4096)
def _read_config(path: Path, modified_ns: int) -> dict[str, Any]:
    """Return the settings of a run; empty if the file is damaged."""
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _lookup(settings: Any, name: str) -> str | None:
    """Return a nested setting by its full name, of a group the choice; None if it is not there."""
    for key in name.split("."):
        settings = settings.get(key) if isinstance(settings, dict) else None
    value = settings.get("name") if isinstance(settings, dict) else settings
    return None if value is None else str(value)


def _is_equal(recorded: str, requested: str) -> bool:
    """Return whether two texts have the same value; numbers and lists of numbers may be written differently."""
    first, second = (yaml.load(text, yaml.CSafeLoader) for text in (recorded.replace("'", ""), requested))
    try:
        return np.array_equal(np.array(first, float), np.array(second, float))
    except (ValueError, TypeError):
        return str(first) == str(second)
