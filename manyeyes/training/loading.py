"""Finished and stopped runs, loaded from their folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from manyeyes.core.notebook import html_table
from manyeyes.core.registry import suggestion
from manyeyes.training.frames import events_frame
from manyeyes.training.run_files import with_caveats
from manyeyes.training.run_names import differing_settings, find_runs
from manyeyes.training.run_record import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from manyeyes.report.plotting import Figure


MAX_NAMES = 4  # of runs in one line


@dataclass(frozen=True, repr=False)
class Runs:
    """Several runs: iterate over them, compare them in one table or in one chart."""

    records: tuple[RunRecord, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.records)

    def __getitem__(self, name: int | str) -> RunRecord:
        """Return a run by its position or its name."""
        if isinstance(name, int):
            return self.records[name]
        names = [run.name for run in self.records]
        if name not in names:
            raise ValueError(f"Found no run {name!r}{suggestion(name, names)}: choose {', '.join(names)}.")
        return self.records[names.index(name)]

    def to_pandas(self) -> DataFrame:
        """Return a row for each run: its status, the settings in which the runs differ, and its last numbers."""
        settings, rows = differing_settings([*self.records]), []
        for run in self.records:
            chosen = {name: run.settings.get(name) for name in settings}
            last = {name: values[-1] for name, (_, values) in run.columns.items()}
            rows.append({"name": run.name, "status": run.status, "round": run.rounds, **chosen, **last})
        return events_frame(rows).reset_index().set_index("name")

    def plot(self, metric: str = "") -> Figure:
        """Return a chart of a metric over rounds; runs that differ only in their seed are one line with a band."""
        import manyeyes  # whose charts are above this package

        return manyeyes.plot(*self.records, metric=metric)

    def __repr__(self) -> str:
        names = ", ".join([run.name for run in self.records[:MAX_NAMES]] + ["..."] * (len(self) > MAX_NAMES))
        caveats = {run.caveats for run in self.records}  # where they differ, the names have them
        return f"Runs({with_caveats(f'{len(self)} runs: {names}', caveats.pop() if len(caveats) == 1 else ())})"

    def _repr_html_(self) -> str:
        return html_table(f"{len(self)} runs", {run.name: run.describe() for run in self.records})


def load_run(folder: str | Path) -> RunRecord:
    """Return a run by its folder, such as "runs/mine": its settings, events and scores."""
    runs = find_runs([str(folder)])
    if len(runs) > 1:
        raise ValueError(f"{folder} has {len(runs)} runs: name one of them, or use load_runs.")
    return runs[0]


def load_runs(pattern: str | Path) -> Runs:
    """Return all runs in the folders that match a pattern, such as "runs/*"; a folder may have several runs."""
    folders = [path for path in sorted(glob(str(pattern), recursive=True)) if Path(path).is_dir()]
    records = {run.folder.resolve(): run for folder in folders for run in _runs_below(folder)}
    if not records:
        raise ValueError(f"{pattern} matches no folder of a run: give a pattern such as runs/*.")
    return Runs(tuple(find_runs([str(run.folder) for run in records.values()])))


def _runs_below(folder: str) -> list[RunRecord]:
    try:
        return find_runs([folder])
    except ValueError:  # a folder of something else
        return []
