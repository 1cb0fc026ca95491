"""`manyeyes reproduce`: all runs of a table or figure of a paper, and its numbers next to ours."""

import os
import shlex
import sys
from argparse import SUPPRESS
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyeyes.cli.parser import Parser
from manyeyes.config.build import build_population
from manyeyes.config.compose import compose_config
from manyeyes.core.population import Population
from manyeyes.core.registry import options_of
from manyeyes.data.store.reader import read_caveats
from manyeyes.papers import EXHIBITS, DatasetRecipe, Exhibit, get_exhibits
from manyeyes.papers.choices import CHOICES, open_choices
from manyeyes.papers.comparison import compare, comparison_table, notes_by_row, numbered_notes
from manyeyes.papers.document import write
from manyeyes.papers.estimate import estimate
from manyeyes.papers.exhibit import RULE_TEXT
from manyeyes.papers.figures import figures
from manyeyes.papers.paper_table import TERMINAL_WIDTH as PAPER_TABLE_WIDTH
from manyeyes.papers.paper_table import paper_tables
from manyeyes.papers.plan import USER_SETTINGS, ReproduceOptions, described_datasets, planned_runs, select_rows
from manyeyes.papers.results import ExhibitResults
from manyeyes.papers.runner import error_message, missing_dataset, run_all
from manyeyes.report.population import show
from manyeyes.report.table import Table
from manyeyes.training.run_files import with_caveats

USAGE = """manyeyes reproduce --list
       manyeyes reproduce PAPER.NAME [--plan | --show] [option=value ...]
       manyeyes reproduce PAPER [--plan | --show] [option=value ...]     all tables and figures of a paper"""
DESCRIPTION = """Train the runs that a table or figure of a paper needs, and print the paper's numbers next to the measured ones.
Finished runs are not trained again, stopped runs are resumed, and a run that fails does not stop the others. The
tables and figures of a paper share their runs."""
OPTIONS = {declared.name: declared for declared in options_of(ReproduceOptions)}
REPEATABLE = ("rows", "grid_filter")
BOOLEANS = {"true": True, "false": False}


def main(argv: list[str]) -> int:
    args = _parser().parse_intermixed_args(argv or ["--help"])
    settings = [argument for argument in args.arguments if "=" in argument]
    keys = [argument for argument in args.arguments if "=" not in argument]
    if args.list and not args.arguments:
        _print_list()
        return 0
    if len(keys) != 1 or args.list:
        raise ValueError(
            f"Name one table or figure, such as hsu2020.table2, or one paper, not {len(keys)}; --list stands alone."
        )
    options = _parse_options(settings)
    exhibits = [select_rows(exhibit, options) for exhibit in get_exhibits(keys[0])]
    if args.plan:
        for exhibit in exhibits:
            _print_plan(exhibit, options)
        return 0
    return max(_reproduce(exhibit, options, is_trained=not args.show) for exhibit in exhibits)


def _parser() -> Parser:
    options = "\n".join(f"  {name + '=...':<22}{declared.help}" for name, declared in OPTIONS.items())
    note = f"The paper decides all settings of manyeyes run except {', '.join(USER_SETTINGS)}."
    example = "manyeyes reproduce hsu2020.table2 scale=0.1 synthetic=true"
    epilog = f"{options}\n\n{note}"
    parser = Parser("manyeyes reproduce", usage=USAGE, description=DESCRIPTION, epilog=epilog, example=example)
    parser.add_argument("arguments", nargs="*", help=SUPPRESS)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="list every table and figure")
    action.add_argument("--plan", action="store_true", help="print the runs, their progress and time; train nothing")
    action.add_argument("--show", action="store_true", help="compare the finished runs; train nothing")
    return parser


def _parse_options(arguments: list[str]) -> ReproduceOptions:
    values: dict[str, Any] = {}
    lists: dict[str, list[str]] = {name: [] for name in (*REPEATABLE, "extra", "launcher_settings")}
    for argument in arguments:
        name, _, text = argument.partition("=")
        if not text:
            raise ValueError(f"{name} has no value: write {name}=...")
        if name in REPEATABLE:
            lists[name].append(text)
        elif name in OPTIONS:
            values[name] = _parse_value(OPTIONS[name].type, text)
        elif name.startswith("launcher."):
            lists["launcher_settings"].append(argument)
        elif name.partition(".")[0] in USER_SETTINGS:
            lists["extra"].append(argument)
        else:
            known = ", ".join((*OPTIONS, *USER_SETTINGS))
            raise ValueError(f"{name} cannot be set, because the paper decides it: choose from {known}.")
    return ReproduceOptions(**values | {name: tuple(items) for name, items in lists.items()})


def _parse_value(kind: Any, text: str) -> Any:
    """Return the value of an option, or the text if it is not of its kind, which the options then reject."""
    if kind in (bool, str):
        return BOOLEANS.get(text, text) if kind is bool else text
    with suppress(ValueError):
        return kind(text) if kind in (int, float) else Path(text)
    return text


def _reproduce(exhibit: Exhibit, options: ReproduceOptions, is_trained: bool) -> int:
    """Train the runs, or only use those that have finished, and compare them; return the exit code."""
    _check_writable(Path(options.folder, exhibit.paper))
    runs = list(planned_runs(exhibit, options))
    failures = run_all(runs, options, _log) if is_trained else []
    failures += [f"{run.folder}: {run.mismatch}" for run in runs if run.mismatch]
    results = ExhibitResults(exhibit, options, _populations(exhibit, options, failures))
    compared = compare(results)
    report = write(results, compared, figures(results))
    failures += results.errors.values()
    title = f"{exhibit.key}: {exhibit.title}"
    if tables := paper_tables(exhibit, compared, results.tag):
        lines = [title, *(table.terminal(PAPER_TABLE_WIDTH) for table in tables), *notes_by_row(compared)]
    else:
        lines = [comparison_table(compared, results.tag, title).terminal(), *numbered_notes(compared)]
    print("\n".join([*lines, exhibit.claim, results.disclaimer or RULE_TEXT]))
    print(f"{report}: {sum(bool(number.measured) for number in compared)} of {len(compared)} measured")
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


def _print_plan(exhibit: Exhibit, options: ReproduceOptions) -> None:
    runs = (*(run for _, run in described_datasets(exhibit, options)), *map(options.apply, exhibit.runs))
    for dataset in dict.fromkeys(run.dataset for run in runs):
        if dataset is not None:
            have = "have" if Path(dataset.path).exists() else "make"
            print(with_caveats(f"{have}  {dataset.prepare_command}", read_caveats(Path(dataset.path))))
    for run in planned_runs(exhibit, options):
        print(f"{run.status:9}{run.folder}  {run.rounds}/{run.run.count('rounds')} rounds")
        print(f"         {shlex.join(['manyeyes', 'run', *run.overrides(options.extra)])}")
        for change in run.run.changes:
            print(f"         {change}")
    if exhibit.runs:
        print(estimate(planned_runs(exhibit, options), options.parallel))


def _populations(exhibit: Exhibit, options: ReproduceOptions, failures: list[str]) -> dict[DatasetRecipe, Population]:
    """Return the datasets that rows describe; an exhibit without runs also gets the page of `manyeyes data inspect`."""
    populations: dict[DatasetRecipe, Population] = {}
    for dataset, run in described_datasets(exhibit, options):
        try:
            if reason := missing_dataset(run.dataset):
                raise ValueError(reason)
            populations[dataset] = build_population(compose_config(run.settings))
        except Exception as error:
            failures.append(f"{run.name}: {error_message(error)}")
    if not exhibit.runs:
        tag = f"({options.tag})" if options.tag else ""
        for dataset, population in populations.items():
            name = " ".join(filter(None, [Path(dataset.path).name, dataset.task, tag]))
            show(population, name, Path(options.folder, exhibit.paper, f"{exhibit.name}_{name.replace(' ', '_')}"))
    return populations


def _print_list() -> None:
    rows = []
    for key, exhibit in EXHIBITS.items():
        num_printed = sum(printed is not None for row in exhibit.rows for printed in row.expected.values())
        num_runs = f"{len(exhibit.runs):,}" + (f" x {exhibit.num_seeds}" if exhibit.num_seeds > 1 else "")
        rows.append([key, exhibit.title, num_runs if exhibit.runs else "data", str(num_printed or "none printed")])
    print(Table("", ["name", "title", "runs", "numbers"], rows, is_prose=True).terminal())
    choices = []
    for choice in CHOICES:
        keys = [key for key, exhibit in EXHIBITS.items() if open_choices(exhibit.runs, [choice])]
        choices.append([f"{choice.name}: {' or '.join(choice.answers)}", choice.question, ", ".join(keys)])
    columns = ["option, its default first", "decides", "in"]
    print(Table("What the papers leave open", columns, choices, is_prose=True).terminal())
    print("The page of each table and figure has all that its paper leaves open.")
