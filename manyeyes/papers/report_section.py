"""Sections of a report with what the papers print, next to the runs of the report."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from manyeyes.papers import EXHIBITS, Exhibit, get_exhibit
from manyeyes.papers.comparison import PRINTED_COLUMNS, compare, comparison_table, numbered_notes
from manyeyes.papers.metric import Metric, RunOutcome
from manyeyes.papers.plan import ReproduceOptions, merge_equal_rows
from manyeyes.papers.results import ExhibitResults
from manyeyes.papers.statistics import Statistic
from manyeyes.papers.timing import describe, evaluation_gap
from manyeyes.report.page import Block, Section
from manyeyes.report.table import Table
from manyeyes.training.run_record import RunRecord

NOT_REPRODUCED = (
    "These runs were not made by manyeyes reproduce, so their settings may not be the paper's: you have to judge which "
    "row a run corresponds to."
)


def paper_sections(runs: list[RunRecord], key: str | None = None) -> list[Section]:
    """Return a section for each table or figure that the runs belong to, or for the one that the user chose."""
    exhibits = list(EXHIBITS.values()) if key is None else [get_exhibit(key)]
    sections: list[Section] = []
    for (paper, options), run_names in _group_runs(runs).items():
        for exhibit in exhibits:
            if exhibit.paper == paper:
                sections += _comparison(exhibit, options, run_names)
    return sections if sections or key is None else [_next_to_printed(exhibits[0], runs)]


def _group_runs(runs: list[RunRecord]) -> dict[tuple[str, ReproduceOptions], set[str]]:
    """Return the names of the runs that `manyeyes reproduce` made, by paper and options."""
    folders: dict[tuple[str, ReproduceOptions], list[Path]] = {}
    for folder in (run.folder.resolve() for run in runs):
        if (origin := _origin(folder)) is not None:
            folders.setdefault(origin, []).append(folder)
    num_seeds = {origin: 1 + max(int(path.name) for path in paths) for origin, paths in folders.items()}
    return {
        (paper, replace(options, seeds=num_seeds[paper, options])): {path.parent.name for path in paths}
        for (paper, options), paths in folders.items()
    }


def _origin(folder: Path) -> tuple[str, ReproduceOptions] | None:
    """Return paper and options of a run in the folder PAPER/[TAG/]NAME/SEED; None if it is not such a folder."""
    papers = {exhibit.paper for exhibit in EXHIBITS.values()}
    if not folder.name.isdigit() or len(folder.parents) < 4:
        return None
    for paper, tag in ((folder.parents[1], ""), (folder.parents[2], folder.parents[1].name)):
        options = ReproduceOptions.from_folder_tag(tag, paper.parent)
        if paper.name in papers and options is not None:
            return paper.name, options
    return None


def _comparison(exhibit: Exhibit, options: ReproduceOptions, run_names: set[str]) -> Iterator[Section]:
    """Yield the comparison of the exhibit's rows that the runs belong to, if anything was measured."""
    exhibit = merge_equal_rows(exhibit, options)
    rows = tuple(row for row in exhibit.rows if run_names & {run.name for run in row.runs})
    results = ExhibitResults(replace(exhibit, rows=rows), options)
    try:
        compared = compare(results)
    except (ValueError, OSError):  # a run whose files do not have what the exhibit is about
        return
    if measured := [number for number in compared if number.describe()]:
        table = comparison_table(measured, results.tag, f"{exhibit.key}: {exhibit.title}")
        texts = [*filter(None, [exhibit.claim, results.disclaimer])]
        yield Section(f"Paper: {exhibit.key}", [*texts, table, *numbered_notes(measured)])


def _next_to_printed(exhibit: Exhibit, runs: list[RunRecord]) -> Section:
    """Return what the paper prints, and the same metrics of the user's own runs."""
    expected = [(row.name, metric, printed) for row in exhibit.rows for metric, printed in row.expected.items()]
    printed_rows = [[row, str(metric), str(printed)] for row, metric, printed in expected if printed is not None]
    printed_table = Table(f"{exhibit.key}: {exhibit.title}, as printed", PRINTED_COLUMNS, printed_rows, is_prose=True)
    content: list[str | Block] = [exhibit.claim, NOT_REPRODUCED, printed_table]
    metrics = dict.fromkeys(metric for _, metric, _ in expected if not isinstance(metric, Statistic))
    measured_rows = [[str(metric), *(_measure(metric, run) for run in runs)] for metric in metrics]
    if measured_rows := [row for row in measured_rows if any(row[1:])]:
        names = [run.name for run in runs]
        content.append(Table("The same metrics of these runs", ["", *names], measured_rows, is_prose=True))
    return Section(f"Paper: {exhibit.key}", content)


def _measure(metric: Metric, run: RunRecord) -> str:
    """Return a metric of a run, and how far from the paper's budget it was evaluated; empty if the run lacks it."""
    try:
        outcome = RunOutcome.from_record(run)
        value = metric.compute(outcome)
        gap = describe([evaluation_gap(metric, outcome)])
    except ValueError:
        return ""
    return "" if value is None else f"{value:.4g} ({gap})" if gap else f"{value:.4g}"
