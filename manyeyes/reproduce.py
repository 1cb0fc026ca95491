"""`manyeyes reproduce`: all runs of a table or figure of a paper, and its numbers beside ours."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console
from rich.table import Table

from manyeyes.algorithm import Diverged
from manyeyes.conf.build import build_population
from manyeyes.conf.command import train_from
from manyeyes.conf.errors import is_about_settings, sentence
from manyeyes.conf.presets import register
from manyeyes.files import write_text
from manyeyes.papers import ITEMS, Item, Store, item
from manyeyes.papers.comparison import Line, compare, markdown
from manyeyes.papers.plan import How, Job, jobs, shown, wanted
from manyeyes.population import Population
from manyeyes.report.population import show

HELP = """usage: manyeyes reproduce --list
       manyeyes reproduce PAPER.ITEM [--plan] [row=NAME ...] [scale=F] [stand_in=true] [seeds=N] [folder=DIR] [...]

Run what a table or figure of a paper needs, and print its numbers beside ours. What is done is not run again, and what
was stopped goes on; a run that fails is named at the end and stops no other. Items of a paper share their runs.

  --list         every table and figure
  --plan         say what would be run, and how far it is; run nothing
  row=NAME       only this row, or those with this in their names; may be given several times
  scale=F        smaller: rounds and clients times F, photos and pixels times its root
  stand_in=true  on procedural worlds instead of the datasets
  seeds=N        so many seeds instead of the paper's
  folder=DIR     where runs are kept (runs)

Settings of engine, track and checkpoint_seconds are those of manyeyes run; all others are the paper's.
"""
OURS = ("engine", "track", "checkpoint_seconds", "client_memory")  # what a recipe leaves to the person
EXPECTED = (ValueError, Diverged, OSError)  # failures that say in a sentence what to do


def reproduce(words: list[str]) -> int:
    """List, plan or run."""
    if not words or "--help" in words or "-h" in words:
        print(HELP)
        return 0
    if words == ["--list"]:
        Console().print(_listing())
        return 0
    named = [word for word in words if "=" not in word and not word.startswith("-")]
    for word in words:
        if word.startswith("-") and word != "--plan":
            raise ValueError(f"{word} is no option: choose --list, --plan or --help")
    if len(named) != 1:
        raise ValueError(f"name one table or figure, such as hsu2020.table2, not {len(named)}: see --list")
    how, extra = _how([word for word in words if "=" in word])
    one = wanted(item(named[0]), how)
    if "--plan" in words:
        _plan(one, how)
        return 0
    failures = _run_all(one, how, extra)
    populations = _open_all(one, how, failures)
    lines = compare(one, how, populations)
    report = Path(how.folder, one.paper, "_".join([one.name, *how.mark.replace(",", "").split()]) + ".md")
    report.parent.mkdir(parents=True, exist_ok=True)
    write_text(report, markdown(one, how, lines))
    Console().print(_table(one, how, lines))
    print(f"{report}: {sum(bool(line.measured) for line in lines)} of {len(lines)} measured")
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _how(words: list[str]) -> tuple[How, tuple[str, ...]]:
    """What is wanted, and the settings of the machine."""
    given: dict[str, Any] = {}
    rows, extra = [], []
    kinds = {"scale": float, "seeds": int, "folder": Path}
    for word in words:
        name, _, value = word.partition("=")
        if name == "row":
            rows.append(value)
        elif name == "stand_in":
            if value not in ("true", "false"):
                raise ValueError(f"stand_in is {value!r}: it must be true or false")
            given[name] = value == "true"
        elif name in kinds:
            try:
                given[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"{name} is {value!r}: it must be a number") from None
        elif name.partition(".")[0] in OURS:
            extra.append(word)
        else:
            raise ValueError(f"{name} is the paper's to set: choose row, scale, stand_in, seeds, folder or engine...")
    return How(**given, rows=tuple(rows)), tuple(extra)


def _plan(one: Item, how: How) -> None:
    """Say what would be run."""
    for store in one.stores:
        if not how.stand_in:
            print(f"{'have' if Path(store.path).exists() else 'make'}  {store.prepare}")
    for job in jobs(one, how):
        print(f"{job.state:8}{job.folder}  {job.rounds}/{job.run.setting('rounds')} rounds")
        print(f"        {shlex.join(['manyeyes', 'run', *job.settings, f'folder={job.folder}'])}")
        for change in job.run.changes:
            print(f"        {change}")


def _run_all(one: Item, how: How, extra: tuple[str, ...]) -> list[str]:
    """Run what is missing; returns a sentence for each run that failed."""
    failures = []
    todo = list(jobs(one, how))
    with _settings():
        for number, job in enumerate(todo, 1):
            if job.state == "done":
                continue
            print(f"{number} of {len(todo)}: {job.folder}", file=sys.stderr)
            try:
                _run(job, extra)
            except Exception as error:  # a night of runs does not end with one of them
                failures.append(f"{job.folder}: {_said(error)}")
    return failures


def _run(job: Job, extra: tuple[str, ...]) -> None:
    if job.run.store is not None:
        _there(job.run.store)
    config = compose("config", overrides=[*job.settings, *extra])
    train_from(config, job.folder, resume=job.state == "stopped")


def _open_all(one: Item, how: How, failures: list[str]) -> dict[Store, Population]:
    """The datasets that rows show; each is shown as `manyeyes data show` does."""
    found: dict[Store, Population] = {}
    with _settings():
        for row in one.rows:
            for store in row.stores:
                made = shown(row, store, how)
                try:
                    if made.store is not None:
                        _there(made.store)
                    people = build_population(compose("config", overrides=list(made.settings)).data)
                except Exception as error:
                    failures.append(f"{row.name}: {_said(error)}")
                    continue
                found[store] = people
                if not one.runs:
                    name = " ".join([Path(store.path).name, store.task, f"({how.mark})" if how.mark else ""]).strip()
                    show(people, name, Path(how.folder, one.paper, f"{one.name}_{name.replace(' ', '_')}"))
    return found


def _said(error: Exception) -> str:
    if is_about_settings(error):
        return sentence(error)
    return str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"


def _there(store: Store) -> None:
    if not Path(store.path).exists():
        raise ValueError(f"{store.path} is not there; make it with: {store.prepare}")


@contextmanager
def _settings() -> Iterator[None]:
    """Where settings are composed as `manyeyes run` composes them."""
    register()
    GlobalHydra.instance().clear()
    with initialize(version_base="1.3", config_path=None):
        yield


def _listing() -> Table:
    table = Table("item", "what it is", "runs", "numbers", box=None)
    for key, one in ITEMS.items():
        printed = sum(number is not None for row in one.rows for number in row.expected.values())
        runs = f"{len(one.runs):,}" + (f" x {one.seeds}" if one.seeds > 1 else "") if one.runs else "data"
        table.add_row(key, one.title, runs, str(printed) if printed else "none printed")
    return table


def _table(one: Item, how: How, lines: list[Line]) -> Table:
    measured = f"measured\n({how.mark})" if how.mark else "measured"
    table = Table("row", "measure", "paper", measured, title=f"{one.key}: {one.title}", caption=one.claim or None)
    for line in lines:
        table.add_row(line.row, line.measure, str(line.printed or ""), line.words())
    return table
