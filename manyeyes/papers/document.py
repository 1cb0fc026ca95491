"""An item as files: a table in Markdown and CSV, charts as SVG, PNG and CSV, and a page that has all of it."""

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from manyeyes.io.files import write_text
from manyeyes.papers.comparison import ComparedNumber, ExhibitResults
from manyeyes.papers.exhibit import Exhibit
from manyeyes.papers.numbers import table
from manyeyes.papers.plan import ReproduceOptions, dataset_run, jobs
from manyeyes.papers.tolerance import RULE_TEXT
from manyeyes.report import report
from manyeyes.report.chart import Chart
from manyeyes.report.export import write_charts
from manyeyes.report.page import ChartGrid, Section, page
from manyeyes.report.table import Table
from manyeyes.report.text import escape
from manyeyes.training.run_record import read_run

HEAD = ("row", "measure", "paper", "measured", "difference", "within")
MOST_RUNS = 60  # that are reported on the page one by one
MOST_COMMANDS = 40  # that are written out


def stem(item: Exhibit, how: ReproduceOptions) -> Path:
    """Where the item's files are, but for their endings."""
    return Path(how.folder, item.paper, "_".join([item.name, *how.tag.replace(",", "").split()]))


def write(found: ExhibitResults, lines: list[ComparedNumber], charts: list[Chart]) -> Path:
    """All files; returns the Markdown's path."""
    place = stem(found.item, found.options)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_charts(charts, place.parent, prefix=f"{place.name}_")
    write_text(place.with_name(f"{place.name}.csv"), table(lines, found.options.tag))
    write_text(place.with_name(f"{place.name}.html"), html(found, lines, charts))
    path = place.with_name(f"{place.name}.md")
    write_text(path, markdown(found, lines, charts))
    return path


def html(found: ExhibitResults, lines: list[ComparedNumber], charts: list[Chart]) -> str:
    """The page of the item: its charts and numbers, then all that a report says of its runs where they are not many."""
    item, how = found.item, found.options
    title = f"{item.key}: {item.title}" + (f" ({how.tag})" if how.tag else "")
    heads = [f"measured ({how.tag})" if how.tag and name == "measured" else name for name in HEAD]
    about = [f"The paper: {item.claim}", how.disclaimer or RULE_TEXT, " ".join(changes(item, how)), item.note]
    numbers = Table("The paper's numbers and ours", heads, [list(line.cells()) for line in lines], is_prose=True)
    first = Section("Paper and measured", [*filter(None, about), ChartGrid(charts), numbers])
    folders = [job.folder for job in jobs(item, how) if (job.folder / "metrics.jsonl").exists()]
    again = Section("Again", [f"This page: {command(item, how)}", Commands(commands(item, how))])
    if 0 < len(folders) <= MOST_RUNS:
        runs = [read_run(folder, _called(folder, how)) for folder in folders]
        return report.html(runs, title, [first, again, *report.sections(runs)])
    lead = f"{len(folders):,} runs." if folders else "Data alone, without a run."
    return page(title, lead, [first, again])


def _called(folder: Path, how: ReproduceOptions) -> str:
    """The run and its seed; shorter than their folder, and with what they are not in a word or three."""
    marks = {"scaled": how.scale != 1, "cut": how.rounds > 0, "stand-in": how.synthetic}
    said = ", ".join(mark for mark, holds in marks.items() if holds)
    return f"{f'{said}: ' if said else ''}{folder.parent.name}/{folder.name}"


@dataclass(frozen=True)
class Commands:
    """Lines that a person can type."""

    lines: list[str]

    def html(self) -> str:
        text = "\n".join(map(escape, self.lines))
        return f"<details><summary>The runs</summary><pre>{text}</pre></details>"


def markdown(found: ExhibitResults, lines: list[ComparedNumber], charts: list[Chart]) -> str:
    """What is not the paper's own run says so in its head, and nothing of it is compared."""
    item, how = found.item, found.options
    measured = f"measured ({how.tag})" if how.tag else "measured"
    text = f"# {item.key}: {item.title}\n\n"
    text += f"The paper: {item.claim}\n\n" if item.claim else ""
    text += f"**{how.disclaimer}**\n\n" if how.disclaimer else f"{RULE_TEXT}\n\n"
    text += f"    {command(item, how)}\n\n"
    text += f"{' '.join(changes(item, how))}\n\n" if changes(item, how) else ""
    text += "".join(f"![{one.title}]({stem(item, how).name}_{one.name}.svg)\n\n" for one in charts)
    heads = [measured if name == "measured" else name for name in HEAD]
    text += f"| {' | '.join(heads)} |\n|---|---|{'---:|' * 4}\n"
    text += "".join(f"| {' | '.join(line.cells())} |\n" for line in lines)
    return text + (f"\n{item.note.strip()}\n" if item.note else "")


def command(item: Exhibit, how: ReproduceOptions) -> str:
    """What a person types for this."""
    return shlex.join(["manyeyes", "reproduce", item.key, *how.overrides])


def changes(item: Exhibit, how: ReproduceOptions) -> list[str]:
    """How runs and data differ from the paper's, each way once, and what was left out or is still to be done."""
    held = (dataset_run(row, store, how) for row in item.rows for store in row.stores)
    made = list(dict.fromkeys(change for run in (*map(how.apply, item.runs), *held) for change in run.changes))
    stands = [change for change in made if change.startswith("Stand-in: ")]
    if len(stands) > 1:  # of so many datasets, each the same sentence
        random = ", and random weights the pretrained ones" if any("pretrained" in one for one in stands) else ""
        sentence = f"Stand-in: procedural worlds replace the datasets{random}."
        made = [sentence, *(one for one in made if one not in stands)]
    return [*made, *_smaller_grid(how), *_unfinished(item, how)]


def _smaller_grid(how: ReproduceOptions) -> list[str]:
    return [f"Of each row's grid only the runs named like {' or '.join(how.grid_filter)}."] if how.grid_filter else []


def _unfinished(item: Exhibit, how: ReproduceOptions) -> list[str]:
    states = Counter(job.status for job in jobs(item, how))
    every, lost = states.total(), states["diverged"]
    done = states["finished"] + lost
    said = [f"Done so far: {done:,} of {every:,} runs; a row shows the best of its own."] if done < every else []
    return said + ([f"Diverged: {lost:,} of {every:,} runs; a row shows the best of its others."] if lost else [])


def commands(item: Exhibit, how: ReproduceOptions) -> list[str]:
    """The trainings behind it, as they can be typed one by one."""
    every = [shlex.join(["manyeyes", "run", *job.overrides(how.extra)]) for job in jobs(item, how)]
    more = [f"... and {len(every) - MOST_COMMANDS} more: see --plan"] if len(every) > MOST_COMMANDS else []
    return every[:MOST_COMMANDS] + more
