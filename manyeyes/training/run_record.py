"""What is recorded of a run: settings, events, scores and status, and what follows from them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyeyes.core.notebook import html_table
from manyeyes.core.population import CAVEAT_SEPARATOR
from manyeyes.metrics import PerUser
from manyeyes.training import run_files
from manyeyes.training.event_columns import CUMULATIVE, Floats, Ints, LongEvents
from manyeyes.training.frames import events_frame, scores_frame
from manyeyes.training.headline import headline_metric, shared_model_name
from manyeyes.training.run_files import Event, Status, finite_numbers, with_caveats

if TYPE_CHECKING:
    from pandas import DataFrame

    from manyeyes.report.plotting import Figure

NOT_COMPARED = ("folder", "resume")  # settings that say where a run is, not what it is


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The contents of a run folder; what could not be read is named in `problems`."""

    name: str
    folder: Path
    events: Sequence[Event]
    settings: dict[str, Any] = field(default_factory=dict)  # flat: algorithm.lr, data.name, ...
    environment: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    dataset_stats: dict[str, Any] = field(default_factory=dict)
    class_rows: list[dict[str, str]] = field(default_factory=list)  # of per_class.csv
    user_rows: list[dict[str, str]] = field(default_factory=list)  # of per_user.csv
    example_images: list[dict[str, Any]] = field(default_factory=list)
    color: int | None = None  # in charts, where a page has given it one
    status: Status = "empty"
    status_note: str = ""  # such as why the run diverged or failed
    problems: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    @property
    def rounds(self) -> int:
        """The number of rounds that were trained."""
        return int(self.events[-1]["round"]) if self.events else 0

    @property
    def planned_rounds(self) -> int | None:
        text = str(self.settings.get("rounds"))
        return int(text) if text.isdecimal() else None

    @cached_property
    def overrides(self) -> dict[str, str]:
        """The settings that the command of the run chose, and their values: of a sweep, those of this run."""
        _, *args = list(map(str, self.environment.get("command") or [])) or [""]
        chosen = (arg.partition("=") for arg in args if "=" in arg and not arg.startswith("-"))
        return {name: self._chosen_value(name, text) for name, _, text in chosen if not name.startswith("hydra")}

    def _chosen_value(self, name: str, text: str) -> str:
        """Return the value of an override: what the settings have, where the text has several or an internal name."""
        choice = self.settings.get(f"{name}.name")
        is_sweep = "--multirun" in self.environment["command"] or "-m" in self.environment["command"]
        if isinstance(choice, str):
            return choice
        if is_sweep and name in self.settings and re.search(r"[,(]", text):
            return format_setting(self.settings[name])
        return text

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats of the data, which everything that is shown of the run repeats."""
        text = str(self.settings.get(run_files.CAVEATS_KEY) or "")
        return tuple(text.split(CAVEAT_SEPARATOR)) if text else ()

    @property
    def metric(self) -> str | None:
        """The metric that is shown first."""
        return headline_metric(self.columns)

    @property
    def shared_model(self) -> str:
        """The name of the models that the run's personalized models are compared with."""
        return shared_model_name(has_personal_layers="personal_layers.name" in self.settings)

    @property
    def key_without_seed(self) -> str:
        """A text that is the same for runs which differ only in their seed; unique if the settings are unknown."""
        if not self.settings:
            return str(self.folder)
        shared = {name: value for name, value in self.settings.items() if name not in (*NOT_COMPARED, "seed")}
        return json.dumps(shared, sort_keys=True, default=str)

    @cached_property
    def columns(self) -> dict[str, tuple[Ints, Floats]]:
        """The rounds and values of each number in the events, and of `images_per_second`."""
        if isinstance(self.events, LongEvents):
            return _columns_of(self.events)
        points: dict[str, dict[int, float]] = defaultdict(dict)
        for event in self.events:
            values = dict(finite_numbers(event))
            if values.get("seconds", 0) > 0 and "num_images" in values:
                values["images_per_second"] = values["num_images"] / values["seconds"]
            for name, value in values.items():
                points[name][event["round"]] = value
        return {name: (np.array([*row], np.int64), np.array([*row.values()])) for name, row in points.items()}

    @cached_property
    def cumulative(self) -> dict[str, Floats]:
        """The sums over rounds until each event: batches of the largest clients, images and seconds."""
        if isinstance(self.events, LongEvents):
            zeros = np.zeros(len(self.events))
            return {name: np.nancumsum(self.events.numbers.get(name, zeros)) for name in CUMULATIVE}
        return {name: np.cumsum([float(event.get(name) or 0) for event in self.events]) for name in CUMULATIVE}

    @cached_property
    def event_rounds(self) -> Ints:
        if isinstance(self.events, LongEvents):
            return self.events.rounds
        return np.array([event["round"] for event in self.events], np.int64)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the rounds and values of a metric; empty if the run does not have it."""
        rounds, values = self.columns.get(name, (np.zeros(0, np.int64), np.zeros(0)))
        return rounds.tolist(), values.tolist()

    def last(self, name: str) -> float | None:
        return float(self.columns[name][1][-1]) if name in self.columns else None

    def describe(self) -> str:
        """Return the status, the rounds and the last value of the metric that is shown first."""
        value = None if self.metric is None else self.last(self.metric)
        score = "" if value is None else f", {self.metric} {value:.4f}"
        return with_caveats(f"{self.status} after {self.rounds:,} rounds{score}", self.caveats)

    def to_pandas(self) -> DataFrame:
        """Return the events as a data frame: a row for each round, a column for each number."""
        return events_frame(self.events)

    def per_class(self) -> DataFrame:
        """Return the final scores of each class as a data frame."""
        return scores_frame(self.class_rows, "classes")

    def per_user(self) -> DataFrame:
        """Return the final scores of each user as a data frame."""
        return scores_frame(self.user_rows, "users")

    def plot(self, metric: str = "") -> Figure:
        """Return a chart of a metric over rounds, by default of the one that is shown first."""
        import manyeyes  # whose charts are above this package

        return manyeyes.plot(self, metric=metric)

    def __repr__(self) -> str:
        return f"RunRecord({self.name!r}, {self.describe()})"

    def _repr_html_(self) -> str:
        last = {name: f"{value:.4f}" for name in self.columns if (value := self.last(name)) is not None}
        chart = self.plot()._repr_html_() if self.metric and len(self.columns[self.metric][0]) > 1 else ""
        return html_table(f"{self.name}: {self.describe()}", last) + chart

    def user_scores(self) -> dict[str, PerUser]:
        """Return the score of each user by column of per_user.csv, such as "personalized_accuracy" and "accuracy"."""
        if not self.user_rows:
            return {}
        columns = {name: np.array([float(row[name]) for row in self.user_rows]) for name in [*self.user_rows[0]][1:]}
        counts = columns.pop("examples").astype(np.int64)
        return {name: PerUser(np.arange(len(counts)), values, counts) for name, values in columns.items()}


def format_setting(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _columns_of(events: LongEvents) -> dict[str, tuple[Ints, Floats]]:
    numbers = dict(events.numbers)
    if "seconds" in numbers and "num_images" in numbers:
        seconds = np.where(numbers["seconds"] > 0, numbers["seconds"], np.nan)
        numbers["images_per_second"] = numbers["num_images"] / seconds
    known = {name: ~np.isnan(values) for name, values in numbers.items()}
    return {
        name: (events.rounds[known[name]], values[known[name]]) for name, values in numbers.items() if known[name].any()
    }
