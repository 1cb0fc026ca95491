"""Read run folders. A damaged file is named as a problem of the run and never an error."""

from __future__ import annotations

import base64
import csv
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyeyes.io.parsing import parse_json, parse_yaml
from manyeyes.metrics import PERSONALIZED
from manyeyes.metrics.heterogeneity import is_valid
from manyeyes.training import run_files
from manyeyes.training.event_columns import CUMULATIVE, LongEvents
from manyeyes.training.run_checksums import check_text
from manyeyes.training.run_files import Event, parse_event, read_metrics_checksum, read_status
from manyeyes.training.run_record import RunRecord

MIN_LONG_BYTES = 2**24  # of a metrics file whose events are not all kept in memory as objects
MORE_SCORES = {"class": {"precision", "recall", "f1", "ap_200"}, "user": set[str]()}  # of several labels per image
IMAGE_TEXTS = ("heading", "by", "class", "predicted", "format", "data")  # of an entry of EXAMPLE_IMAGES_FILE
IMAGE_SIGNATURES = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}  # how the bytes of a picture begin
MAX_IMAGES = 100  # of a run


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
    probability_and_width = (entry.get("probability"), entry.get("width"))
    try:
        start = base64.b64decode(entry["data"], validate=True)[:8]
    except ValueError:
        return False
    is_picture = start.startswith(IMAGE_SIGNATURES.get(entry["format"], b"no such format"))
    return is_picture and all(map(_is_number, probability_and_width)) and isinstance(entry.get("is_correct"), bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
