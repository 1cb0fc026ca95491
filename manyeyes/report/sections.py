"""The sections on privacy, on speed, and on how to reproduce runs."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from manyeyes.report.curves import Group, metric_chart, select
from manyeyes.report.overview import Columns, run_table, speed, training_time
from manyeyes.report.page import Block, ChartGrid, Folded, Html, Section
from manyeyes.report.table import Table, table_of
from manyeyes.report.text import escape, format_duration
from manyeyes.training.run_files import CONFIG_FILE
from manyeyes.training.run_names import differing_settings
from manyeyes.training.run_record import NOT_COMPARED, RunRecord, format_setting

WITHHELD = (
    "The losses, update norms, counts and times of single rounds, and statistics of the training users, are not recorded: "
    "they are exact numbers that the guarantee does not cover."
)
RUN_PROGRAM = "manyeyes run"  # the first word of the command of a run
MAX_COMMANDS = 12  # that are shown; more are folded
PACKAGES = ("manyeyes", "torch", "numpy")  # whose versions are shown


def privacy_section(groups: list[Group]) -> Section | None:
    """Return the guarantee of each private run, what it covers, and what was spent."""
    private = select(groups, lambda run: bool(run.privacy) or run.last("epsilon") is not None)
    runs = [run for group in private for run in group.runs]
    if not runs:
        return None
    columns: Columns = {
        "epsilon": lambda run: run.last("epsilon"),
        "delta": partial(_option, name="delta"),
        "neighbors": _neighbors,
        "noise multiplier": partial(_option, name="noise_multiplier"),
        "clipping norm": lambda run: run.last("clipping_norm"),
        "cohort of the noise": lambda run: (
            f"{size:,} simulated" if (size := _option(run, "noise_cohort_size")) else "the clients that train"
        ),
        "noise source": lambda run: (
            "the run's seed: no protection" if _option(run, "reproducible_noise") else "the operating system"
        ),
        "rounds": lambda run: run.rounds,
    }
    missing = "the guarantee is written when a run ends, and this one has not ended."
    guarantees = [f"{run.name}: {run.privacy.get('guarantee') or missing}" for run in runs]
    if any(run.rounds and "num_images" not in run.columns for run in runs):
        guarantees.append(WITHHELD)
    spent = metric_chart(private, "epsilon", "Epsilon spent", "At the delta of the table.", low=0)
    norm = metric_chart(private, "clipping_norm", "Clipping norm", "Longer updates are scaled down to it.")
    return Section("Privacy", [run_table("Guarantees", runs, columns), *guarantees, ChartGrid([spent, norm])])


def speed_section(groups: list[Group]) -> Section | None:
    timed = select(groups, lambda run: speed(run) is not None)
    if not timed:
        return None
    columns: dict[str, Callable[[Group], object]] = {
        "seconds per round, median": lambda group: format_duration(_mean_speed(group)[0]),
        "images per second": lambda group: f"{_mean_speed(group)[1]:,.0f}",
        "training time": lambda group: training_time(group.runs),
        "engine": lambda group: group.runs[0].environment.get("engine") or group.runs[0].settings.get("engine.name"),
        "device": lambda group: group.runs[0].environment.get("device"),
        "machine": lambda group: _machine(group.runs[0]),
        "threads": lambda group: group.runs[0].environment.get("threads"),
    }
    caption = "Images trained on, divided by the seconds of the round; without evaluation."
    images = metric_chart(timed, "images_per_second", "Images per second", caption, low=0)
    seconds = metric_chart(timed, "seconds", "Seconds per round", "Planning, training and aggregation.", low=0)
    note = "; means over seeds" if any(len(group.runs) > 1 for group in timed) else ""
    table = table_of(f"Training without evaluation{note}", [(group.name, group) for group in timed], columns)
    return Section("Speed", [table, ChartGrid([images, seconds])])


def _mean_speed(group: Group) -> tuple[float, float]:
    """Return the median seconds per round and the images per second, each the mean over the runs of a group."""
    paces = [pace for run in group.runs if (pace := speed(run)) is not None]
    return fmean(seconds for seconds, _ in paces), fmean(images for _, images in paces)


def _machine(run: RunRecord) -> str:
    return str(run.environment.get("gpu") or f"{run.environment.get('cpus', '?')} CPUs")


def reproduction_section(runs: list[RunRecord]) -> Section:
    """Return the command of each run, the versions, and all settings."""
    return Section("Repeat", [*_commands(runs), *_versions(runs), *_all_settings(runs)])


def _commands(runs: list[RunRecord]) -> list[str | Block]:
    """Return the command of each run, and the folders; of many runs the first ones, and the others folded."""
    commands = [(run.name, command) for run in runs if (command := _command(run))]
    blocks = [code_block(command, name if len(runs) > 1 else "") for name, command in commands]
    visible, folded = blocks[:MAX_COMMANDS], blocks[MAX_COMMANDS:]
    folders = [str(run.folder) for run in runs[:MAX_COMMANDS]]
    more = f" and {len(runs) - MAX_COMMANDS} more" if len(runs) > MAX_COMMANDS else ""
    return [
        *visible,
        *([Folded(f"{len(folded)} more", folded)] if folded else []),
        f"Folders: {', '.join(folders)}{more}",
    ]


def _versions(runs: list[RunRecord]) -> list[Table]:
    """Return a table with a row for each run, or with one row if all runs are the same."""
    columns: Columns = {
        "git revision": lambda run: run.environment.get("revision") or "not from a checkout",
        "Python": lambda run: run.environment.get("python"),
        **{name: partial(_package_version, name=name) for name in PACKAGES},
        "platform": lambda run: run.environment.get("platform"),
    }
    table = run_table("Versions", runs, columns)
    has_one_row = len(runs) > 1 and len({tuple(cells) for _, *cells in table.rows}) == 1
    return [table_of("Versions", [("all runs", runs[0])], columns) if has_one_row else table]


def _all_settings(runs: list[RunRecord]) -> list[Folded]:
    """Return the settings of each run; those that several runs share are written once."""
    if len(runs) == 1:
        return [Folded(f"All settings of {runs[0].name}", [_settings_block(runs[0].settings)])]
    differing = differing_settings(runs)
    shared = {name: value for name, value in runs[0].settings.items() if name not in differing}
    own = [{name: value for name, value in run.settings.items() if name not in shared} for run in runs]
    blocks = [Folded(f"Other settings of {run.name}", [_settings_block(own[i])]) for i, run in enumerate(runs)]
    return [Folded("Settings that all runs share", [_settings_block(shared)]), *blocks]


def code_block(text: str, label: str = "") -> Html:
    """Return text to copy, with a label above it; the script of the page adds a button that copies it."""
    lines = "\n".join(map(escape, text.splitlines()))
    heading = f"<figcaption>{escape(label)}</figcaption>" if label else ""
    return Html(f'<figure class="code">{heading}<pre tabindex="0">{lines}</pre></figure>')


def _settings_block(settings: Mapping[str, Any]) -> Html:
    lines = "\n".join(f"{name}={format_setting(value)}" for name, value in settings.items())
    return code_block(lines or f"none, or {CONFIG_FILE} is missing")


def _option(run: RunRecord, name: str) -> float | None:
    """Return an option of a run's privacy: as calibrated if the run has ended, else as set; None for automatic."""
    mechanism = run.privacy.get("mechanism")
    value = mechanism.get(name) if isinstance(mechanism, dict) else run.settings.get(f"privacy.{name}")
    return value if isinstance(value, int | float) and value else None


def _package_version(run: RunRecord, name: str) -> str:
    packages = run.environment.get("packages")
    return str(packages.get(name, "")) if isinstance(packages, dict) else ""


def _neighbors(run: RunRecord) -> str:
    guarantee = str(run.privacy.get("guarantee", ""))
    return next((text for text in ("replace one user", "add or remove one user") if text in guarantee), "")


def _command(run: RunRecord) -> str:
    """Return the command that trains a run once more: of a sweep, this run alone."""
    program, *arguments = list(map(str, run.environment.get("command") or [])) or [""]
    program = program.rpartition("/")[2]
    if program == RUN_PROGRAM:
        arguments = [f"{name}={value}" for name, value in run.overrides.items() if name not in NOT_COMPARED]
    return " ".join([program, shlex.join(arguments)]).strip()
