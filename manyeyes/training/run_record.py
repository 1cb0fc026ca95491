"""Read run folders: settings, events, scores and status. A damaged file is named as a problem and never an error."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyeyes.core.notebook import html_table
from manyeyes.core.population import CAVEAT_SEPARATOR
from manyeyes.io.parsing import parse_json, parse_yaml
from manyeyes.metrics import PERSONALIZED, PerUser
from manyeyes.metrics.heterogeneity import is_valid
from manyeyes.training import run_files
from manyeyes.training.event_columns import CUMULATIVE, Floats, Ints, LongEvents
from manyeyes.training.frames import events_frame, scores_frame
from manyeyes.training.headline import headline_metric, shared_model_name
from manyeyes.training.run_checksums import check_text
from manyeyes.training.run_files import (
    Event,
    Status,
    finite_numbers,
    parse_event,
    read_metrics_checksum,
    read_status,
    with_caveats,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from manyeyes.report.plotting import Figure

MIN_LONG_BYTES = 2**24  # of a metrics file whose events are not all kept in memory as objects
RUN_FILES = (run_files.CONFIG_FILE, run_files.ENVIRONMENT_FILE, run_files.METRICS_FILE)  # a run has some of them
MORE_SCORES = {"class": {"precision", "recall", "f1", "ap_200"}, "user": set[str]()}  # of several labels per image
IMAGE_TEXTS = ("heading", "by", "class", "predicted", "format", "data")  # of an entry of EXAMPLE_IMAGES_FILE
IMAGE_SIGNATURES = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}  # how the bytes of a picture begin
MAX_IMAGES = 100  # of a run
NOT_COMPARED = ("folder", "resume")  # settings that say where a run is, not what it is
AUTOMATIC_NAME = re.compile(r"\d+|\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_.*")  # of the folder of a run, or of a sweep
NAME_SEPARATOR = " · "
# Settings that do not tell what a run is; its name has them only if the command has.
UNNAMED_SETTINGS = re.compile(
    r"(engine|example_images|trackers|sources|callbacks|checkpoint|client_state|data_caveats)\b.*"
)


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
        """What has to be said of all that is shown of the run, because of its data."""
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


def read_run(folder: Path, name: str = "") -> RunRecord:
    reader = _FolderReader(folder)
    events = reader.events()
    settings = dict(_flat(reader.mapping(run_files.CONFIG_FILE)))
    stats = reader.mapping(run_files.DATASET_STATS_FILE)
    if stats and not is_valid(stats):
        reader.problems.append(f"{run_files.DATASET_STATS_FILE} is damaged and ignored")
        stats = {}
    record = RunRecord(
        name=name or folder.resolve().name,
        folder=folder,
        events=events,
        settings=settings,
        environment=reader.mapping(run_files.ENVIRONMENT_FILE),
        privacy=reader.mapping(run_files.PRIVACY_FILE),
        dataset_stats=stats,
        class_rows=reader.rows(run_files.PER_CLASS_FILE, "class"),
        user_rows=reader.rows(run_files.PER_USER_FILE, "user"),
        example_images=reader.example_images(),
        problems=tuple(reader.problems),
    )
    status, note = read_status(folder, events[-1] if events else None, record.planned_rounds)
    return replace(record, status=status, status_note=note)


class _FolderReader:
    """Reads the files of a run folder, and collects the problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def text(self, file: str) -> str:
        """Return the text of a file; empty if it does not exist."""
        data = self.data(file)
        try:
            check_text(self.folder, file, data)
        except ValueError:
            self.problems.append(f"{file} has another checksum than the run wrote and is ignored")
            return ""
        return data.decode(errors="replace")

    def data(self, file: str) -> bytes:
        try:
            return (self.folder / file).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.problems.append(f"{file} cannot be read ({error.strerror})")
            return b""

    def mapping(self, file: str) -> dict[str, Any]:
        parse = parse_yaml if file.endswith(".yaml") else parse_json
        try:
            content = parse(self.text(file) or "{}")
        except ValueError:
            content = None
        if isinstance(content, dict):
            return content
        self.problems.append(f"{file} cannot be read")
        return {}

    def rows(self, file: str, subject: str) -> list[dict[str, str]]:
        """Return the rows of a table of scores, whose first column is its subject."""
        try:
            rows = list(csv.DictReader(self.text(file).splitlines()))
        except csv.Error:  # such as a text of over 131,072 characters
            self.problems.append(f"{file} cannot be read")
            return []
        valid_rows = [row for row in rows if _is_score(row, subject)]
        if num_invalid := len(rows) - len(valid_rows):
            self.problems.append(f"{num_invalid} rows of {file} are damaged and ignored")
        return valid_rows

    def example_images(self) -> list[dict[str, Any]]:
        """Return the images that are complete and are pictures."""
        entries = self.mapping(run_files.EXAMPLE_IMAGES_FILE).get("images", [])
        images = list(filter(_is_image, entries)) if isinstance(entries, list) else []
        if not isinstance(entries, list) or len(images) < len(entries):
            self.problems.append(f"{run_files.EXAMPLE_IMAGES_FILE} is damaged: some images are missing")
        return images[:MAX_IMAGES]

    def events(self) -> Sequence[Event]:
        """Return the events in order; damaged lines, such as the last one after a crash, are ignored."""
        events: list[Event] = []
        damaged_lines: list[int] = []
        size, crc = read_metrics_checksum(self.folder) or (0, 0)  # before the file, which a run may be writing
        data = self.data(run_files.METRICS_FILE)
        is_changed = zlib.crc32(data[:size]) != crc
        if len(data) > MIN_LONG_BYTES and not is_changed and (long_events := LongEvents.parse(data)) is not None:
            return long_events
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            event = parse_event(line)
            if event is None or not _is_next(event, events[-1]["round"] if events else -1):
                damaged_lines.append(number)
            else:
                events.append(event)
        if damaged_lines:
            file, count, first = run_files.METRICS_FILE, len(damaged_lines), f"line {damaged_lines[0]}"
            lines = f"{first} of {file} is" if count == 1 else f"{count:,} lines of {file}, the first {first}, are"
            self.problems.append(f"{lines} damaged and ignored")
        elif is_changed:
            self.problems.append(f"{run_files.METRICS_FILE} has changed since the checkpoint was written")
        return events


def find_runs(arguments: list[str]) -> list[RunRecord]:
    """Return the runs that a user named: folders, NAME=FOLDER, or folders of runs such as those of a sweep."""
    given_names = {folder: name for argument in arguments for folder, name in _named_folders(argument)}
    runs = [read_run(folder, name) for folder, name in given_names.items()]
    names = [given_name or name for given_name, name in zip(given_names.values(), _folder_names(runs), strict=True)]
    if len({run.caveats for run in runs}) > 1:  # otherwise the page says it of all
        names = [with_caveats(name, run.caveats) for name, run in zip(names, runs, strict=True)]
    counts = Counter(names)
    named_runs = zip(runs, names, strict=True)
    return [replace(run, name=name if counts[name] == 1 else f"{name} ({run.folder})") for run, name in named_runs]


def format_setting(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def naming_settings(runs: list[RunRecord]) -> list[str]:
    """Return the settings that tell runs apart: those that their commands chose and, where these are not enough, others.

    What follows from another choice, such as the sampler of an algorithm, tells no more runs apart and is left out.
    """
    differing = [name for name in differing_settings(runs) if not UNNAMED_SETTINGS.match(name)]
    overridden = dict.fromkeys(name for run in runs for name in run.overrides)
    chosen = [name for key in overridden for name in (key, f"{key}.name") if name in differing]
    others = sorted(differing, key=lambda name: name != "algorithm.name")
    while len(keys := _values(runs, chosen)) < len(runs):
        best = max(others, key=lambda name: len(_values(runs, [*chosen, name])), default="")
        if not best or len(_values(runs, [*chosen, best])) == len(keys):
            break
        chosen.append(best)
    return sorted(chosen, key=lambda name: (name != "algorithm.name", name == "seed", differing.index(name)))


def describe_run(run: RunRecord, settings: Sequence[str]) -> str:
    """Return the values of settings as a name: `fedavg · lr 0.1 · seed 0`."""
    last = [name.removesuffix(".name").rpartition(".")[2] for name in settings]
    briefs = [text if last.count(text) == 1 else name for name, text in zip(settings, last, strict=True)]
    known = [(name, text) for name, text in zip(settings, briefs, strict=True) if run.settings.get(name) is not None]
    parts = [
        ("" if name.endswith(".name") else f"{text} ") + format_setting(run.settings[name]) for name, text in known
    ]
    return NAME_SEPARATOR.join(parts)


def differing_settings(runs: list[RunRecord]) -> list[str]:
    """Return the names of the settings that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in NOT_COMPARED)
    return [name for name in names if len({json.dumps(run.settings.get(name), default=str) for run in runs}) > 1]


def _named_folders(argument: str) -> Iterator[tuple[Path, str]]:
    """Yield the run folders that an argument names, and their names; empty where it gives none."""
    given_name, folder = _split_name(argument)
    if not folder.is_dir():
        raise ValueError(f"No folder {folder}: give the folders of runs, such as runs/2026-11-15_21-00-00_fedavg.")
    if _is_run(folder):
        yield folder, given_name
        return
    run_folders = sorted(filter(_is_run, folder.rglob("*/")), key=_natural_order)
    if not run_folders:
        raise ValueError(f"{folder} has no run: give the folder of a run, or a folder of several runs.")
    for run_folder in run_folders:
        yield run_folder, given_name and f"{given_name} {run_folder.relative_to(folder)}"


def _split_name(argument: str) -> tuple[str, Path]:
    """Return the name and folder of FOLDER or NAME=FOLDER, both of which may contain an equals sign."""
    equals = [match.start() for match in re.finditer("=", argument)]
    candidates = [("", Path(argument)), *((argument[:index], Path(argument[index + 1 :])) for index in equals)]
    return next((candidate for candidate in candidates if candidate[1].is_dir()), candidates[-1])


def _folder_names(runs: list[RunRecord]) -> list[str]:
    """Return the name of each run: its folder or, where the folder was named automatically, what tells the run apart."""
    parents = [run.folder.resolve().parent for run in runs]
    common = Path(os.path.commonpath(parents))
    paths = [run.folder.resolve().relative_to(common) for run in runs]
    settings = naming_settings(runs) if len(runs) > 1 else _chosen_settings(runs[0])
    return [_folder_name(run, path, settings) for run, path in zip(runs, paths, strict=True)]


def _chosen_settings(run: RunRecord) -> list[str]:
    """Return what names a run on its own: the algorithm, its options in the command, and what the sweep varied."""
    typed = " ".join(map(str, run.environment.get("command") or []))
    chosen = [
        n for n, value in run.overrides.items() if n.startswith("algorithm.") or f"{n}={value}" not in typed.split()
    ]
    return ["algorithm.name", *(n for n in chosen if n in run.settings)]


def _folder_name(run: RunRecord, path: Path, settings: Sequence[str]) -> str:
    is_automatic = all(map(AUTOMATIC_NAME.fullmatch, path.parts))
    return (is_automatic and describe_run(run, settings)) or str(path)


def _values(runs: list[RunRecord], settings: Sequence[str]) -> set[str]:
    """Return the different combinations of values that runs have of some settings."""
    return {json.dumps([run.settings.get(name) for name in settings], default=str) for run in runs}


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _columns_of(events: LongEvents) -> dict[str, tuple[Ints, Floats]]:
    numbers = dict(events.numbers)
    if "seconds" in numbers and "num_images" in numbers:
        seconds = np.where(numbers["seconds"] > 0, numbers["seconds"], np.nan)
        numbers["images_per_second"] = numbers["num_images"] / seconds
    known = {name: ~np.isnan(values) for name, values in numbers.items()}
    return {
        name: (events.rounds[known[name]], values[known[name]]) for name, values in numbers.items() if known[name].any()
    }


def _is_next(event: Event, last_round: int) -> bool:
    """Return whether an event is of a later round, and what is summed over rounds are numbers."""
    return last_round < event["round"] and all(_is_number(event.get(name, 0)) for name in CUMULATIVE)


def _is_score(row: dict[str, str], subject: str) -> bool:
    """Return whether a row of a table has the columns that a run writes: a name, a count and numbers."""
    if None in row or not _are_score_columns([*row], subject):
        return False
    _, count, *values = row.values()
    try:
        return int(count) >= 0 and all(map(_is_number, map(float, values)))
    except (TypeError, ValueError):
        return False


def _are_score_columns(columns: list[str], subject: str) -> bool:
    shared = [column for column in columns[2:] if not column.startswith(PERSONALIZED.removesuffix("_"))]
    is_metric = shared[:1] in (["accuracy"], ["ap"]) and len(columns[2:]) <= len(shared) + 1
    return columns[:2] == [subject, "examples"] and is_metric and set(shared[1:]) <= MORE_SCORES[subject]


def _is_image(entry: object) -> bool:
    """Return whether an entry of EXAMPLE_IMAGES_FILE has all its texts, and a picture of the format that it names."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in IMAGE_TEXTS):
        return False
    numbers = (entry.get("probability"), entry.get("width"))
    try:
        start = base64.b64decode(entry["data"], validate=True)[:8]
    except ValueError:
        return False
    is_picture = start.startswith(IMAGE_SIGNATURES.get(entry["format"], b"no such format"))
    return is_picture and all(map(_is_number, numbers)) and isinstance(entry.get("is_correct"), bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in RUN_FILES)  # unlike Path.is_file, False without permission


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key by which run2 comes before run10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]
