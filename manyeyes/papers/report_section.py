"""What the papers print, beside given runs: of the items whose runs they are, or of one that a person names."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyeyes.papers import ITEMS, Exhibit, item
from manyeyes.papers.comparison import ExhibitResults, compare
from manyeyes.papers.metric import Metric, RunOutcome
from manyeyes.papers.plan import ReproduceOptions
from manyeyes.papers.statistics import Statistic
from manyeyes.papers.timing import describe, evaluation_gap
from manyeyes.report.page import Section
from manyeyes.report.table import Table
from manyeyes.training.run_record import RunRecord

MARK = re.compile(r"(?:scaled_by_([\d.e-]+))?_?(?:cut_at_(\d+)_rounds)?_?(on_stand-ins)?")
HEAD = ["row", "measure", "paper", "measured", "difference", "within"]


def paper_sections(runs: list[RunRecord], key: str | None = None) -> list[Section]:
    """A section for each table or figure; none where no paper has these runs and none was named."""
    wanted = None if key is None else item(key)
    homes = [home for run in runs if (home := _home(run.folder.resolve()))]
    names: dict[tuple[str, ReproduceOptions], set[str]] = {}
    for paper, how, name in homes:
        known = next((k for k in names if k[0] == paper and replace(k[1], seeds=0) == replace(how, seeds=0)), None)
        if known is not None and known[1].seeds < how.seeds:
            names[(paper, how)] = names.pop(known)
            known = (paper, how)
        names.setdefault(known or (paper, how), set()).add(name)
    sections: list[Section] = []
    for (paper, how), some in names.items():
        for one in [wanted] if wanted else ITEMS.values():
            if one.paper == paper:
                sections += _compared(one, how, some)
    if wanted and not sections:
        sections = [_own(wanted, runs)]
    return sections


def _home(folder: Path) -> tuple[str, ReproduceOptions, str] | None:
    """Of a run that `manyeyes reproduce` made: its paper, how it was asked for, and the run's name."""
    papers = {one.paper for one in ITEMS.values()}
    parents = folder.parents
    if not folder.name.isdigit() or len(parents) < 4:
        return None
    for root, mark in ((parents[1], ""), (parents[2], parents[1].name)):
        found = MARK.fullmatch(mark)
        if root.name in papers and found:
            scale, rounds, stand_in = found.groups()
            seeds = int(folder.name) + 1
            how = ReproduceOptions(float(scale or 1), bool(stand_in), int(rounds or 0), seeds, folder=root.parent)
            return root.name, how, parents[0].name
    return None


def _compared(one: Exhibit, how: ReproduceOptions, names: set[str]) -> Iterable[Section]:
    """The rows of an item that the runs belong to."""
    rows = tuple(row for row in one.rows if names & {run.name for run in row.runs})
    if not rows:
        return
    try:
        lines = [
            cells for line in compare(ExhibitResults(replace(one, rows=rows), how), {}) if (cells := line.cells())[3]
        ]
    except (ValueError, OSError):  # a run whose files do not have what the item is about
        return
    if lines:
        said = [how.disclaimer] if how.disclaimer else []
        head = [*HEAD[:3], f"measured ({how.tag})", *HEAD[4:]] if how.tag else HEAD
        table = Table(f"{one.key}: {one.title}", head, [list(cells) for cells in lines], is_prose=True)
        yield Section(f"Paper: {one.key}", [one.claim, *said, table])


def _own(one: Exhibit, runs: list[RunRecord]) -> Section:
    """What the paper prints, and the same measures of runs that are the person's own."""
    printed = [
        [row.name, str(measure), str(number)]
        for row in one.rows
        for measure, number in row.expected.items()
        if number is not None
    ]
    content: list[Any] = [
        one.claim,
        "These runs were not made by manyeyes reproduce, so their settings may not be the paper's: which row a run "
        "answers to is the reader's to say.",
        Table(f"{one.key}: {one.title}, as printed", HEAD[:3], printed, is_prose=True),
    ]
    measures = dict.fromkeys(m for row in one.rows for m in row.expected if not isinstance(m, Statistic))
    rows = [[str(measure), *(_measured(measure, run) for run in runs)] for measure in measures]
    rows = [cells for cells in rows if any(cells[1:])]
    if rows:
        content.append(Table("The same of these runs", ["", *(run.name for run in runs)], rows, is_prose=True))
    return Section(f"Paper: {one.key}", content)


def _measured(measure: Metric, run: RunRecord) -> str:
    try:
        outcome = RunOutcome.from_folder(run.folder)
        value = measure.compute(outcome) if run.events else None
        late = describe([evaluation_gap(measure, outcome)]) if value is not None else ""
    except (ValueError, OSError):
        return ""
    return "" if value is None else f"{value:.4g} ({late})" if late else f"{value:.4g}"
