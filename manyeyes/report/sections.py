"""Accounts of runs: what was promised and spent of privacy, what time went where, and how to do it all again."""

import re
import shlex
from dataclasses import dataclass
from typing import Any

from manyeyes.report.curves import Group, chart
from manyeyes.report.overview import duration, format_seconds, format_setting, format_value, speed
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.table import Table
from manyeyes.report.text import escape
from manyeyes.training.run_record import RunRecord


@dataclass(frozen=True)
class Code:
    """Text to be copied as it is; `folded` text is behind a summary."""

    text: str
    folded: str = ""

    def html(self) -> str:
        code = f'<pre tabindex="0">{_lines(self.text)}</pre>'
        return f"<details><summary>{escape(self.folded)}</summary>{code}</details>" if self.folded else code


def _lines(text: str) -> str:
    return "\n".join(escape(line) for line in text.splitlines())


def privacy_section(groups: list[Group]) -> Section | None:
    """The ledger: what is promised, to whom, and what was spent of it."""
    runs = [run for group in groups for run in group.runs if run.privacy or run.last("epsilon") is not None]
    if not runs:
        return None
    content: list[Any] = []
    rows = []
    for run in runs:
        promise = str(run.privacy.get("promise", ""))
        content.append(f"{run.name}: {promise or 'the promise is written when a run ends, and this one has not.'}")
        part = dict(re.findall(r"(\w+)=([^(),]+)", str(run.privacy.get("part", ""))))
        part |= {key: str(run.settings.get(f"privacy.{key}")) for key in ("noise_cohort",) if key not in part}
        simulated = part.get("noise_cohort", "0")
        known = part.get("reproducible_noise", str(run.settings.get("privacy.reproducible_noise")))
        rows.append(
            [
                run.name,
                format_value(run.last("epsilon")),
                format_value(_float(part.get("delta"))),
                "replace one user" if "replace" in promise else "add or remove one user" if promise else "",
                format_value(_float(part.get("noise"))),
                format_value(run.last("clip")),
                f"{int(simulated):,} simulated" if simulated.isdigit() and int(simulated) else "the clients that train",
                "the run's seed: protects nobody" if known.lower() == "true" else "the operating system",
                f"{run.rounds:,}",
            ]
        )
    head = ["", "epsilon", "delta", "neighbours", "noise", "clip", "cohort of the noise", "noise from", "rounds"]
    spending = chart(runs, "epsilon", "epsilon", "Epsilon spent", "At the delta of the table.", low=0)
    bound = chart(runs, "clip", "clip", "The clip", "No update that is summed is longer.")
    table = Table("What was spent; noise and clip: the deviation in clips, and the last clip", head, rows)
    return Section("Privacy", [table, *content, ChartGrid([spending, bound])])


def speed_section(groups: list[Group]) -> Section | None:
    """Seconds and images, and on what."""
    runs = [run for group in groups for run in group.runs if speed(run) is not None]
    if not runs:
        return None
    head = [
        "",
        "seconds a round, median",
        "images a second",
        "time of training",
        "engine",
        "device",
        "machine",
        "threads",
    ]
    rows = []
    for run in runs:
        found, where = speed(run), run.environment
        assert found is not None
        engine = where.get("engine") or run.settings.get("engine.name") or ""
        times = [format_seconds(found[0]), f"{found[1]:,.0f}", duration(run)]
        machine = str(where.get("gpu") or f"{where.get('cpus', '?')} CPUs")
        device, threads = str(where.get("device", "")), str(where.get("threads", ""))
        rows.append([run.name, *times, str(engine), device, machine, threads])
    caption = "Images trained on, over the seconds of the round; evaluation is not counted."
    pace = chart(runs, "images_per_second", "images_per_second", "Images a second", caption, low=0)
    took = chart(runs, "seconds", "seconds", "Seconds a round", "Planning, training and aggregation.", low=0)
    return Section("Speed", [Table("Training alone, without evaluation", head, rows), ChartGrid([pace, took])])


def reproduction_section(runs: list[RunRecord]) -> Section:
    """The command, versions and settings of each run."""
    content: list[Any] = []
    rows = []
    for run in runs:
        words = run.environment.get("command") or []
        if words:
            first, *rest = map(str, words)
            command = " ".join([first.rpartition("/")[2], shlex.join(rest)]).strip()
            content.append(Code(f"# {run.name}\n{command}" if len(runs) > 1 else command))
        where, packages = run.environment, run.environment.get("packages") or {}
        rows.append(
            [run.name, str(where.get("revision") or "not from a checkout"), str(where.get("python", ""))]
            + [str(packages.get(name, "")) for name in ("manyeyes", "torch", "numpy")]
            + [str(where.get("platform", ""))]
        )
    head = ["", "git revision", "Python", "manyeyes", "torch", "numpy", "platform"]
    content.append(Table("Versions", head, rows))
    for run in runs:
        lines = "\n".join(f"{name}={format_setting(value)}" for name, value in run.settings.items())
        content.append(Code(lines or "config.yaml is missing", f"All settings of {run.name}"))
    return Section("Repeat", content)


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
