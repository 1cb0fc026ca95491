"""The sections on privacy, on speed, and on how to reproduce runs."""

import shlex
from functools import partial
from typing import Any

from manyeyes.report.curves import Group, metric_chart
from manyeyes.report.overview import Columns, format_setting, run_table, speed, training_time
from manyeyes.report.page import ChartGrid, Html, Section
from manyeyes.report.text import escape, format_duration
from manyeyes.training.run_files import CONFIG_FILE
from manyeyes.training.run_record import RunRecord

WITHHELD = (
    "The losses, update norms, counts and times of single rounds, and statistics of the training users, are not recorded: "
    "they are exact numbers that the guarantee does not cover."
)
PACKAGES = ("manyeyes", "torch", "numpy")  # whose versions are shown


def privacy_section(groups: list[Group]) -> Section | None:
    """Return the guarantee of each private run, what it covers, and what was spent."""
    runs = [run for group in groups for run in group.runs if run.privacy or run.last("epsilon") is not None]
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
    spent = metric_chart(runs, "epsilon", "Epsilon spent", "At the delta of the table.", low=0)
    norm = metric_chart(runs, "clipping_norm", "Clipping norm", "Longer updates are scaled down to it.")
    return Section("Privacy", [run_table("Guarantees", runs, columns), *guarantees, ChartGrid([spent, norm])])


def speed_section(groups: list[Group]) -> Section | None:
    runs = [run for group in groups for run in group.runs if speed(run) is not None]
    if not runs:
        return None
    columns: Columns = {
        "seconds per round, median": lambda run: format_duration(pace[0]) if (pace := speed(run)) else "",
        "images per second": lambda run: f"{pace[1]:,.0f}" if (pace := speed(run)) else "",
        "training time": training_time,
        "engine": lambda run: run.environment.get("engine") or run.settings.get("engine.name"),
        "device": lambda run: run.environment.get("device"),
        "machine": lambda run: run.environment.get("gpu") or f"{run.environment.get('cpus', '?')} CPUs",
        "threads": lambda run: run.environment.get("threads"),
    }
    caption = "Images trained on, divided by the seconds of the round; without evaluation."
    images = metric_chart(runs, "images_per_second", "Images per second", caption, low=0)
    seconds = metric_chart(runs, "seconds", "Seconds per round", "Planning, training and aggregation.", low=0)
    return Section("Speed", [run_table("Training without evaluation", runs, columns), ChartGrid([images, seconds])])


def reproduction_section(runs: list[RunRecord]) -> Section:
    commands = [(f"# {run.name}\n" if len(runs) > 1 else "", _command(run)) for run in runs]
    content: list[Any] = [code_block(comment + command) for comment, command in commands if command]
    columns: Columns = {
        "git revision": lambda run: run.environment.get("revision") or "not from a checkout",
        "Python": lambda run: run.environment.get("python"),
        **{name: partial(_package_version, name=name) for name in PACKAGES},
        "platform": lambda run: run.environment.get("platform"),
    }
    content.append(run_table("Versions", runs, columns))
    for run in runs:
        lines = "\n".join(f"{name}={format_setting(value)}" for name, value in run.settings.items())
        content.append(code_block(lines or f"{CONFIG_FILE} is missing", f"All settings of {run.name}"))
    return Section("Reproduce", content)


def code_block(text: str, summary: str = "") -> Html:
    """Return text to copy; with a summary it is folded."""
    lines = "\n".join(map(escape, text.splitlines()))
    code = f'<pre tabindex="0">{lines}</pre>'
    return Html(f"<details><summary>{escape(summary)}</summary>{code}</details>" if summary else code)


def _option(run: RunRecord, name: str) -> float | None:
    """Return an option of a run's privacy: as calibrated if the run has ended, else as set; None for automatic."""
    mechanism = run.privacy.get("mechanism")
    value = mechanism.get(name) if isinstance(mechanism, dict) else run.settings.get(f"privacy.{name}")
    return value if isinstance(value, int | float) and value else None


def _package_version(run: RunRecord, name: str) -> str:
    return str((run.environment.get("packages") or {}).get(name, ""))


def _neighbors(run: RunRecord) -> str:
    guarantee = str(run.privacy.get("guarantee", ""))
    return next((text for text in ("replace one user", "add or remove one user") if text in guarantee), "")


def _command(run: RunRecord) -> str:
    """Return the command that started a run, without the path of the program."""
    program, *arguments = list(map(str, run.environment.get("command") or [])) or [""]
    return " ".join([program.rpartition("/")[2], shlex.join(arguments)]).strip()
