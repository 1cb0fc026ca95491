"""Find the runs that a user names, and name them by what tells them apart."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from manyeyes.training import run_files
from manyeyes.training.run_files import with_caveats
from manyeyes.training.run_reader import read_run
from manyeyes.training.run_record import NOT_COMPARED, RunRecord, format_setting

RUN_FILES = (run_files.CONFIG_FILE, run_files.ENVIRONMENT_FILE, run_files.METRICS_FILE)  # a run has some of them
AUTOMATIC_NAME = re.compile(r"\d+|\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_.*")  # of the folder of a run, or of a sweep
NAME_SEPARATOR = " · "
MAX_NAMED_SETTINGS = 3  # in a name, besides the algorithm and the seed
# Settings that do not tell what a run is; its name has them only if the command has.
UNNAMED_SETTINGS = re.compile(
    r"(engine|example_images|trackers|sources|callbacks|checkpoint|client_state|data_caveats)\b.*"
)


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


def naming_settings(runs: list[RunRecord]) -> list[str]:
    """Return the settings that tell runs apart: those that their commands chose and, where these are not enough, others.

    What follows from another choice, such as the sampler of an algorithm, tells no more runs apart and is left out.
    """
    differing = [name for name in differing_settings(runs) if not UNNAMED_SETTINGS.match(name)]
    differing = [name for name in differing if not _follows_from_choice(runs, name)]
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
    briefs = brief_names(settings, run.settings)
    known = [(name, text) for name, text in zip(settings, briefs, strict=True) if run.settings.get(name) is not None]
    parts = [
        ("" if name.endswith(".name") else f"{text} ") + format_setting(run.settings[name]) for name, text in known
    ]
    return NAME_SEPARATOR.join(parts)


def brief_names(settings: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the last words of settings, or the full names where one of them or of the algorithm's ends in the same."""
    last = [name.removesuffix(".name").rpartition(".")[2] for name in settings]
    return [
        name if last.count(text) > 1 or f"algorithm.{text}" in {*known} - {name} else text
        for name, text in zip(settings, last, strict=True)
    ]


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
    settings = _few_settings(runs, naming_settings(runs)) if len(runs) > 1 else _chosen_settings(runs[0])
    names = [_folder_name(run, path, settings) for run, path in zip(runs, paths, strict=True)]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name}{NAME_SEPARATOR}{path}" for name, path in zip(names, paths, strict=True)
    ]


def _few_settings(runs: list[RunRecord], settings: list[str]) -> list[str]:
    """Return the algorithm, the seed, and the few other settings that together tell the most runs apart, in order."""
    few = [name for name in settings if name in ("algorithm.name", "seed")]
    others = [name for name in settings if name not in few]
    for _ in range(min(MAX_NAMED_SETTINGS, len(others))):
        best = max(others, key=lambda name: len(_values(runs, [*few, name])))
        few.append(best)
        others.remove(best)
    return [name for name in settings if name in few]


def _follows_from_choice(runs: list[RunRecord], name: str) -> bool:
    """Return whether an option differs only because runs have different components, such as `data.users` of datasets."""
    choice = f"{name.rpartition('.')[0]}.name"
    names = {run.settings.get(choice) for run in runs}
    return name != choice and len(names) > 1 and len(_values(runs, [choice, name])) == len(names)


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


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in RUN_FILES)  # unlike Path.is_file, False without permission


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key by which run2 comes before run10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]
