"""`manyeyes reproduce`: all runs of a table or figure of a paper, and its numbers next to ours."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from manyeyes.config.build import build_population
from manyeyes.config.compose import compose_config
from manyeyes.core.population import Population
from manyeyes.papers import EXHIBITS, DatasetRecipe, Exhibit, get_exhibit
from manyeyes.papers.comparison import ComparedNumber, ExhibitResults, compare, header
from manyeyes.papers.document import write
from manyeyes.papers.estimate import estimate
from manyeyes.papers.figures import figures
from manyeyes.papers.plan import USER_SETTINGS, ReproduceOptions, dataset_run, planned_runs, select_rows
from manyeyes.papers.runner import RunnerOptions, error_message, missing_dataset, run_all
from manyeyes.papers.tolerance import RULE_TEXT
from manyeyes.report.population import show

HELP = """usage: manyeyes reproduce --list
       manyeyes reproduce PAPER.NAME [--plan | --show] [rows=NAME ...] [scale=F] [synthetic=true] [data=PATH] [...]

Train the runs that a table or figure of a paper needs, and print the paper's numbers next to the measured ones.
Finished runs are not trained again, stopped runs are resumed, and a run that fails does not stop the others. The
tables and figures of a paper share their runs.

  --list               list every table and figure
  --plan               print the runs, how far they are and about how long they take; train nothing
  --show               compare the finished runs; train nothing
  rows=NAME            only this row, or the rows with this text in their names; can be repeated
  grid_filter=PATTERN  if a row is the best of a grid, only the runs whose names end like this; can be repeated
  scale=F              smaller: rounds and clients times F; images, pixels and centralized epochs times its root
  synthetic=true       train on synthetic images instead of the datasets
  rounds=N             at most N rounds
  seeds=N              N seeds instead of the paper's number
  data=PATH            the folder with the prepared datasets (data), or the only dataset that is needed
  folder=DIR           where runs are saved (runs)
  parallel=N           N runs at a time, each in its own process with an equal number of cores
  launcher=NAME        one of Hydra's launchers: joblib, submitit_local or submitit_slurm; its settings: launcher.NAME=...
  retry_diverged=true  train runs that have diverged again

Settings of engine, trackers, evaluate_every, evaluate_every_fraction, checkpoint_seconds and client_state_cache_mib are
those of manyeyes run; all others are the paper's.
"""
FLAGS = ("--list", "--plan", "--show")
REPEATABLE = ("rows", "grid_filter")
TYPES: dict[str, tuple[Callable[[str], Any], str]] = {  # of options, with a description of their values
    **dict.fromkeys(("seeds", "rounds", "parallel"), (int, "a whole number")),
    **dict.fromkeys(("folder", "data"), (Path, "a path")),
    **dict.fromkeys(("synthetic", "retry_diverged"), ({"true": True, "false": False}.__getitem__, "true or false")),
    "scale": (float, "a number"),
    "launcher": (str, "a name"),
}


def main(arguments: list[str]) -> int:
    """List the exhibits, plan one, or train and compare its runs."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    if arguments == ["--list"]:
        Console().print(_list_table())
        return 0
    flags = [argument for argument in arguments if argument.startswith("-")]
    settings = [argument for argument in arguments if "=" in argument and argument not in flags]
    keys = [argument for argument in arguments if argument not in (*flags, *settings)]
    if unknown := [flag for flag in flags if flag not in FLAGS]:
        raise ValueError(f"Unknown option {unknown[0]}: choose {', '.join(FLAGS)} or --help.")
    if len(keys) != 1 or "--list" in flags:
        raise ValueError(f"Name one table or figure, such as hsu2020.table2, not {len(keys)}; --list stands alone.")
    options, runner_options = _parse_options(settings)
    exhibit = select_rows(get_exhibit(keys[0]), options)
    if "--plan" in flags:
        _print_plan(exhibit, options, runner_options)
        return 0
    return _reproduce(exhibit, options, None if "--show" in flags else runner_options)


def _parse_options(arguments: list[str]) -> tuple[ReproduceOptions, RunnerOptions]:
    values: dict[str, Any] = {}
    lists: dict[str, list[str]] = {name: [] for name in (*REPEATABLE, "extra", "launcher_settings")}
    for argument in arguments:
        name, _, text = argument.partition("=")
        if not text:
            raise ValueError(f"{name} has no value: write {name}=...")
        if name in REPEATABLE:
            lists[name].append(text)
        elif name in TYPES:
            values[name] = _convert(name, text)
        elif name.startswith("launcher."):
            lists["launcher_settings"].append(argument)
        elif name.partition(".")[0] in USER_SETTINGS:
            lists["extra"].append(argument)
        else:
            known = ", ".join((*REPEATABLE, *TYPES, *USER_SETTINGS))
            raise ValueError(f"{name} cannot be set, because the paper decides it: choose from {known}.")
    values |= {name: tuple(items) for name, items in lists.items()}
    options, runner_options = (
        kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})
        for kind in (ReproduceOptions, RunnerOptions)
    )
    return options, runner_options


def _convert(name: str, text: str) -> Any:
    convert, description = TYPES[name]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} is {text!r}: it must be {description}.") from None


def _reproduce(exhibit: Exhibit, options: ReproduceOptions, runner_options: RunnerOptions | None) -> int:
    """Train the runs, unless there are no options for it, and compare them; return the exit code."""
    _check_writable(Path(options.folder, exhibit.paper))
    runs = list(planned_runs(exhibit, options))
    failures = run_all(runs, runner_options, _log) if runner_options else []
    failures += [f"{run.folder}: {run.mismatch}" for run in runs if run.mismatch]
    populations = _build_populations(exhibit, options, failures)
    results = ExhibitResults(exhibit, options)
    numbers = compare(results, populations)
    report = write(results, numbers, figures(results, populations))
    failures += results.errors.values()
    Console().print(_comparison_table(exhibit, options, numbers))
    print(f"{report}: {sum(bool(number.measured) for number in numbers)} of {len(numbers)} measured")
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _check_writable(folder: Path) -> None:
    """Reject a folder before hours are spent on runs that could not be saved in it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    reason = "" if os.access(existing, os.W_OK) else f"{existing} is not writable"
    reason = reason if existing.is_dir() else f"{existing} is a file"
    if reason:
        raise ValueError(f"{folder} cannot hold runs ({reason}): choose another folder with folder=DIR.")


def _log(text: str) -> None:
    """Write a line with one call, because parallel runs log at the same time."""
    sys.stderr.write(f"{text}\n")


def _print_plan(exhibit: Exhibit, options: ReproduceOptions, runner_options: RunnerOptions) -> None:
    described = [dataset_run(row, dataset, options).dataset for row in exhibit.rows for dataset in row.datasets]
    for dataset in dict.fromkeys([*described, *(options.apply(run).dataset for run in exhibit.runs)]):
        if dataset is not None:
            print(f"{'have' if Path(dataset.path).exists() else 'make'}  {dataset.prepare_command}")
    for run in planned_runs(exhibit, options):
        print(f"{run.status:9}{run.folder}  {run.rounds}/{run.planned_rounds} rounds")
        print(f"         {shlex.join(['manyeyes', 'run', *run.overrides(runner_options.extra)])}")
        for change in run.run.changes:
            print(f"         {change}")
    if exhibit.runs:
        print(estimate(planned_runs(exhibit, options), runner_options.parallel))


def _build_populations(
    exhibit: Exhibit, options: ReproduceOptions, failures: list[str]
) -> dict[DatasetRecipe, Population]:
    """Return the datasets that rows describe; an exhibit without runs also gets the page of `manyeyes data show`."""
    populations: dict[DatasetRecipe, Population] = {}
    described = [(row, dataset) for row in exhibit.rows for dataset in row.datasets]
    for row, dataset in described:
        run = dataset_run(row, dataset, options)
        try:
            if reason := missing_dataset(run.dataset):
                raise ValueError(reason)
            populations[dataset] = build_population(compose_config(run.settings))
        except Exception as error:
            failures.append(f"{row.name}: {error_message(error)}")
            continue
        if not exhibit.runs:
            tag = f"({options.tag})" if options.tag else ""
            name = " ".join(filter(None, [Path(dataset.path).name, dataset.task, tag]))
            folder = Path(options.folder, exhibit.paper, f"{exhibit.name}_{name.replace(' ', '_')}")
            show(populations[dataset], name, folder)
    return populations


def _list_table() -> Table:
    table = Table("name", "title", "runs", "numbers", box=None)
    for key, exhibit in EXHIBITS.items():
        num_printed = sum(printed is not None for row in exhibit.rows for printed in row.expected.values())
        num_runs = f"{len(exhibit.runs):,}" + (f" x {exhibit.num_seeds}" if exhibit.num_seeds > 1 else "")
        table.add_row(key, exhibit.title, num_runs if exhibit.runs else "data", str(num_printed or "none printed"))
    return table


def _comparison_table(exhibit: Exhibit, options: ReproduceOptions, numbers: list[ComparedNumber]) -> Table:
    columns = (Column(name.replace(" (", "\n("), overflow="fold") for name in header(options.tag))
    caption = "\n".join(filter(None, [exhibit.claim, options.disclaimer or RULE_TEXT]))
    table = Table(*columns, title=f"{exhibit.key}: {exhibit.title}", caption=caption)
    for number in numbers:
        table.add_row(*number.cells())
    return table
