"""Run folders, found and read: what cannot be read is named and left out, and never stops a report."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from manyeyes.report.record import RunRecord, differing, is_number
from manyeyes.training.dataset_stats import is_valid
from manyeyes.training.run_folder import DATASET_STATS_FILE as CENSUS
from manyeyes.training.run_folder import Event

FILES = ("config.yaml", "environment.json", "metrics.jsonl")  # any of these makes a folder a run's


def find_runs(given: list[str]) -> list[RunRecord]:
    """The runs that a person named: folders, NAME=FOLDER, or folders of runs such as a sweep's."""
    places: dict[Path, str] = {}
    for word in given:
        cuts = [("", Path(word)), *((word[: at.start()], Path(word[at.end() :])) for at in re.finditer("=", word))]
        name, folder = next((cut for cut in cuts if cut[1].is_dir()), cuts[-1])  # both may hold a = of their own
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is no folder: give the folders of runs, such as runs/2026-11-15_21-00-00_fedavg"
            )
        found = [folder] if _is_run(folder) else sorted(filter(_is_run, folder.rglob("*/")), key=_natural)
        if not found:
            raise ValueError(f"{folder} holds no run: give a folder that manyeyes run made, or one of several such")
        for place in found:
            inside = str(place.relative_to(folder)) if place != folder else ""
            places[place] = " ".join(filter(None, [name, inside])) if name else ""
    runs = [load_run(place, name) for place, name in places.items()]
    return [replace(run, name=name) for run, name in zip(runs, _names(runs, list(places.values())), strict=True)]


def load_run(folder: Path, name: str = "") -> RunRecord:
    """All that can be read of a run."""
    troubles: list[str] = []

    def text(file: str) -> str:
        try:
            return (folder / file).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            troubles.append(f"{file} cannot be read ({error.strerror})")
            return ""

    def parsed(file: str) -> dict[str, Any]:
        try:
            found = (yaml.safe_load if file.endswith(".yaml") else json.loads)(text(file) or "{}")
        except (yaml.YAMLError, ValueError):
            found = None
        if not isinstance(found, dict):
            troubles.append(f"{file} cannot be read")
        return found if isinstance(found, dict) else {}

    def rows(file: str) -> list[dict[str, str]]:
        found = list(csv.DictReader(text(file).splitlines()))
        good = [row for row in found if _is_score(row)]
        troubles.extend([f"{len(found) - len(good)} rows of {file} are broken and left out"] * (len(good) < len(found)))
        return good

    events = list(_events(text("metrics.jsonl"), troubles))
    census = parsed(CENSUS)
    if census and not is_valid(census):
        troubles.append(f"{CENSUS} is broken and left out")
        census = {}
    return RunRecord(
        name or folder.resolve().name,
        folder,
        events,
        dict(_flat(parsed("config.yaml"))),
        parsed("environment.json"),
        parsed("privacy.json"),
        census,
        rows("per_class.csv"),
        rows("per_user.csv"),
        (folder / "model.safetensors").exists(),
        text("diverged.txt").strip() or text("failed.txt").strip(),
        tuple(troubles),
    )


def _events(text: str, troubles: list[str]) -> Iterator[Event]:
    """Whole lines; those that are none, such as the last of a crash, are left out and named."""
    last, broken = -1, []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            event = json.loads(line)
            assert type(event["round"]) is int and last < event["round"] < 2**53
            assert all(is_number(event.get(name, 0)) for name in ("batches", "images", "seconds"))
        except (ValueError, KeyError, TypeError, AssertionError):
            broken.append(number)
        else:
            last = event["round"]
            yield event
    if len(broken) == 1:
        troubles.append(f"line {broken[0]} of metrics.jsonl is broken and left out")
    elif broken:
        troubles.append(f"{len(broken):,} lines of metrics.jsonl, the first line {broken[0]}, are broken and left out")


def _names(runs: list[RunRecord], given: list[str]) -> list[str]:
    """A name for each run that no other has: as given, its folder's, or where that is a number what it differs in."""
    common = os.path.commonpath([run.folder.resolve().parent for run in runs])
    inside = [str(run.folder.resolve().relative_to(common)) for run in runs]
    apart = differing(runs)
    if apart and all(name.isdigit() for name in inside):
        inside = [", ".join(_word(name, run.settings.get(name)) for name in apart) for run in runs]
    names = [word or name for word, name in zip(given, inside, strict=True)]
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({run.folder})" if name in twice else name for name, run in zip(names, runs, strict=True)]


def _word(name: str, value: Any) -> str:
    return str(value) if name.endswith(".name") else f"{name.rpartition('.')[2]} {value}"


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_score(row: dict[str, str]) -> bool:
    """Whether a row of a table has a name, a count and numbers."""
    try:
        _, count, *values = row.values()
        return None not in row and int(count) == int(row["examples"]) and all(map(is_number, map(float, values)))
    except (KeyError, TypeError, ValueError):
        return False


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in FILES)  # not in a folder that others keep to themselves


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]
