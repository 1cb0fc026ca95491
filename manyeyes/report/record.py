"""A run as a report sees it: finished, stopped, broken or empty, with whatever is there of it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.metrics import PerUser
from manyeyes.report.users import ADAPTED
from manyeyes.training.run_folder import Event

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
HEADLINES = ("macro_ap", "accuracy")  # the metric that a report shows first, the first that a run has
NOT_WHAT = ("folder", "resume", "seed")  # settings that say nothing of what is trained


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run folder holds; whatever cannot be read is named in `troubles`."""

    name: str
    folder: Path
    events: list[Event]
    settings: dict[str, Any] = field(default_factory=dict)  # flat: data.users, ...
    environment: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    dataset_stats: dict[str, Any] = field(default_factory=dict)
    classes: list[dict[str, str]] = field(default_factory=list)  # rows of per_class.csv
    users: list[dict[str, str]] = field(default_factory=list)  # rows of per_user.csv
    finished: bool = False
    ended: str = ""  # the sentence that it diverged or failed with
    problems: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        return int(self.events[-1]["round"]) if self.events else 0

    @property
    def planned(self) -> int | None:
        found = str(self.setting("rounds"))
        return int(found) if found.isdecimal() else None

    @property
    def status(self) -> str:
        """How far it came, in words."""
        if self.finished:
            return "finished"
        if self.ended:
            return "diverged" if "diverged" in self.ended else "failed"
        return "unfinished" if self.events else "empty"

    @property
    def metric(self) -> str | None:
        return next((name for name in HEADLINES if any(name in event for event in self.events)), None)

    def setting(self, name: str) -> Any:
        """A setting; of a run that Python started, from the words that describe it."""
        found = re.search(rf"\b{name}=([\w.]+)", str(self.settings.get("settings", "")))
        return self.settings.get(name, found[1] if found else None)

    @cached_property
    def columns(self) -> dict[str, tuple[Ints, Floats]]:
        """Every number of the events, and what follows from them: the rounds that have it, and its values."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for event in self.events:
            pace = {"images_a_second": event["images"] / event["seconds"]} if _has_pace(event) else {}
            for name, value in (event | pace).items():
                if name != "round" and is_number(value):
                    rounds, values = found.setdefault(name, ([], []))
                    rounds.append(event["round"])
                    values.append(float(value))
        return {name: (np.array(rounds), np.array(values)) for name, (rounds, values) in found.items()}

    @cached_property
    def cumulative(self) -> dict[str, Floats]:
        """Local batches of the largest clients, images and seconds after each event."""
        kinds = ("batches", "images", "seconds")
        return {kind: np.cumsum([float(event.get(kind) or 0) for event in self.events]) for kind in kinds}

    @cached_property
    def rounds_completed(self) -> Ints:
        """The round of each event."""
        return np.array([event["round"] for event in self.events], np.int64)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric."""
        rounds, values = self.columns.get(name, (np.zeros(0, int), np.zeros(0)))
        return rounds.tolist(), values.tolist()

    def last(self, name: str) -> float | None:
        values = self.curve(name)[1]
        return values[-1] if values else None

    def scored(self) -> dict[str, PerUser]:
        """Each user's own score, by what of the run it is: '' as the model is sent, and ', adapted'."""
        if not self.users:
            return {}
        counts = np.array([int(row["examples"]) for row in self.users], np.int64)
        columns = [name for name in self.users[0] if name not in ("user", "examples")]
        return {
            name: PerUser(np.arange(len(counts)), np.array([float(row[column]) for row in self.users]), counts)
            for column, name in zip(columns, ("", ADAPTED), strict=False)
        }

    def same(self) -> str:
        """What two runs share that differ by their seed alone; a name of its own where settings are not known."""
        if not self.settings:
            return str(self.folder)
        what = {name: value for name, value in self.settings.items() if name not in NOT_WHAT}
        return re.sub(r"\bseed=\d+", "", json.dumps(what, sort_keys=True, default=str))


def differing(runs: list[RunRecord]) -> list[str]:
    """Settings that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in ("folder", "resume"))
    return [name for name in names if len({json.dumps(run.settings.get(name), default=str) for run in runs}) > 1]


def _has_pace(event: Event) -> bool:
    return is_number(event.get("images")) and is_number(event.get("seconds")) and event["seconds"] > 0


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
