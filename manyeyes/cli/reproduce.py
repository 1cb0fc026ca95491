"""`manyeyes reproduce`: all runs of a table or figure of a paper, and its numbers beside ours."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from manyeyes.config.build import build_population
from manyeyes.config.compose import compose_config
from manyeyes.core.population import Population
from manyeyes.papers import ITEMS, DatasetRecipe, Exhibit, item
from manyeyes.papers.comparison import ComparedNumber, ExhibitResults, compare
from manyeyes.papers.document import HEAD, write
from manyeyes.papers.estimate import estimate
from manyeyes.papers.figures import figures
from manyeyes.papers.plan import ReproduceOptions, dataset_run, jobs, select_rows
from manyeyes.papers.runner import RunnerOptions, error_message, missing_dataset, run_all
from manyeyes.papers.tolerance import RULE_TEXT
from manyeyes.report.population import show

HELP = """usage: manyeyes reproduce --list
       manyeyes reproduce PAPER.ITEM [--plan | --show] [row=NAME ...] [scale=F] [stand_in=true] [data=PATH] [...]

Run what a table or figure of a paper needs, and print its numbers beside ours. What is done is not run again, and what
was stopped goes on; a run that fails is named at the end and stops no other. Items of a paper share their runs.

  --list         every table and figure
  --plan         say what would be run, how far it is and about how long it takes; run nothing
  --show         compare what is done; run nothing
  row=NAME       only this row, or those with this in their names; may be given several times
  grid=NAME      of rows that are the best of a grid, only the runs whose names end so; * and ? stand for others
  scale=F        smaller: rounds and clients times F, photos, pixels and centralised epochs times its root
  stand_in=true  on procedural worlds instead of the datasets
  rounds=N       at most N rounds
  seeds=N        so many seeds instead of the paper's
  data=PATH      where the prepared datasets are: the folder of their stores (data), or the one store that is needed
  folder=DIR     where runs are kept (runs)
  parallel=N     N runs at a time, each in a process of its own with its share of the cores
  launcher=NAME  by a launcher of Hydra: joblib, submitit_local or submitit_slurm; its settings are launcher.NAME=...
  again=true     try runs that have diverged once more

Settings of engine, track, evaluate_every, evaluate_early and checkpoint_seconds are those of manyeyes run; all others
are the paper's.
"""
# What a recipe leaves to the person.
OURS = ("engine", "track", "checkpoint_seconds", "client_memory", "evaluate_every", "evaluate_early", "launcher")
KINDS = {"scale": float, "seeds": int, "rounds": int, "folder": Path, "data": Path, "parallel": int, "launcher": str}
SWITCHES = ("stand_in", "again")
OF_MEANS = ("parallel", "launcher", "again")


def main(words: list[str]) -> int:
    """List, plan or run."""
    if not words or "--help" in words or "-h" in words:
        print(HELP)
        return 0
    if "--list" in words:
        if len(words) > 1:
            raise ValueError("--list names every table and figure: leave out the other words")
        Console().print(_listing())
        return 0
    named = [word for word in words if "=" not in word and not word.startswith("-")]
    for word in words:
        if word.startswith("-") and word not in ("--plan", "--show"):
            raise ValueError(f"{word} is no option: choose --list, --plan, --show or --help")
    if len(named) != 1:
        raise ValueError(f"name one table or figure, such as hsu2020.table2, not {len(named)}: see --list")
    how, means = _how([word for word in words if "=" in word])
    one = select_rows(item(named[0]), how)
    if "--plan" in words:
        _plan(one, how, means)
        return 0
    _check(Path(how.folder, one.paper))
    every = list(jobs(one, how))
    failures = [] if "--show" in words else run_all(every, means, _say)
    failures += [f"{job.folder}: {job.mismatch}" for job in every if job.mismatch]
    populations = _open_all(one, how, failures)
    found = ExhibitResults(one, how)
    lines = compare(found, populations)
    report = write(found, lines, figures(found, populations))
    failures += found.errors.values()
    Console().print(_table(one, how, lines))
    print(f"{report}: {sum(bool(line.measured) for line in lines)} of {len(lines)} measured")
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _check(folder: Path) -> None:
    """Refuse a folder before hours are spent on what could not be kept there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    why = "" if os.access(there, os.W_OK) else f"{there} may not be written to"
    why = why if there.is_dir() else f"{there} is a file"
    if why:
        raise ValueError(f"{folder} cannot hold runs ({why}): choose another by folder=DIR")


def _say(text: str) -> None:
    """A line at once: runs side by side tell of themselves at the same time."""
    sys.stderr.write(f"{text}\n")


def _how(words: list[str]) -> tuple[ReproduceOptions, RunnerOptions]:
    """What is wanted, and what it is run with."""
    given: dict[str, Any] = {}
    several: dict[str, list[str]] = {"row": [], "grid": [], "extra": []}
    for word in words:
        name, _, value = word.partition("=")
        if not value:
            raise ValueError(f"{name} has no value: write {name}=...")
        if name in ("row", "grid"):
            several[name].append(value)
        elif name in SWITCHES:
            if value not in ("true", "false"):
                raise ValueError(f"{name} is {value!r}: it must be true or false")
            given[name] = value == "true"
        elif name in KINDS:
            try:
                given[name] = KINDS[name](value)
            except ValueError:
                what = "a whole number" if KINDS[name] is int else "a number"
                raise ValueError(f"{name} is {value!r}: it must be {what}") from None
        elif name.partition(".")[0] in OURS:
            several["extra"].append(word)
        else:
            raise ValueError(f"{name} is the paper's to set: choose row, scale, stand_in, seeds, folder or engine...")
    means = RunnerOptions(tuple(several["extra"]), **{name: given.pop(name) for name in OF_MEANS if name in given})
    if not means.launcher and any(word.startswith("launcher.") for word in means.extra):
        raise ValueError("launcher.* are settings of a launcher: choose one with launcher=joblib or another")
    ours = tuple(word for word in means.extra if not word.startswith("launcher."))
    return ReproduceOptions(**given, rows=tuple(several["row"]), grid_filter=tuple(several["grid"]), extra=ours), means


def _plan(one: Exhibit, how: ReproduceOptions, means: RunnerOptions) -> None:
    """Say what would be run."""
    stores = [*_shown(one, how), *(how.apply(run).store for run in one.runs)]
    for store in dict.fromkeys(stores):
        if store is not None:
            print(f"{'have' if Path(store.path).exists() else 'make'}  {store.prepare}")
    for job in jobs(one, how):
        print(f"{job.status:9}{job.folder}  {job.rounds}/{job.wanted} rounds")
        print(f"         {shlex.join(['manyeyes', 'run', *job.overrides(means.extra)])}")
        for change in job.run.changes:
            print(f"         {change}")
    if one.runs:
        print(estimate(jobs(one, how), means.parallel))


def _shown(one: Exhibit, how: ReproduceOptions) -> list[DatasetRecipe | None]:
    return [dataset_run(row, store, how).store for row in one.rows for store in row.stores]


def _open_all(one: Exhibit, how: ReproduceOptions, failures: list[str]) -> dict[DatasetRecipe, Population]:
    """The datasets that rows show; each is shown as `manyeyes data show` does."""
    found: dict[DatasetRecipe, Population] = {}
    for row in one.rows:
        for store in row.stores:
            made = dataset_run(row, store, how)
            try:
                if reason := missing_dataset(made.store):
                    raise ValueError(reason)
                people = build_population(compose_config(made.settings))
            except Exception as error:
                failures.append(f"{row.name}: {error_message(error)}")
                continue
            found[store] = people
            if not one.runs:
                name = " ".join([Path(store.path).name, store.task, f"({how.tag})" if how.tag else ""]).strip()
                show(people, name, Path(how.folder, one.paper, f"{one.name}_{name.replace(' ', '_')}"))
    return found


def _listing() -> Table:
    table = Table("item", "what it is", "runs", "numbers", box=None)
    for key, one in ITEMS.items():
        printed = sum(number is not None for row in one.rows for number in row.expected.values())
        runs = f"{len(one.runs):,}" + (f" x {one.seeds}" if one.seeds > 1 else "") if one.runs else "data"
        table.add_row(key, one.title, runs, str(printed) if printed else "none printed")
    return table


def _table(one: Exhibit, how: ReproduceOptions, lines: list[ComparedNumber]) -> Table:
    heads = [f"measured\n({how.tag})" if how.tag and name == "measured" else name for name in HEAD]
    caption = "\n".join(filter(None, [one.claim, how.disclaimer or RULE_TEXT]))
    table = Table(*(Column(head, overflow="fold") for head in heads), title=f"{one.key}: {one.title}", caption=caption)
    for line in lines:
        table.add_row(*line.cells())
    return table
