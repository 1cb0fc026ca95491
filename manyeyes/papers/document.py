"""The files of an exhibit: its numbers as Markdown and CSV, its charts as SVG, PNG and CSV, and all of it as a page."""

import shlex
from collections import Counter
from pathlib import Path

from manyeyes.io.files import write_text
from manyeyes.papers.comparison import ComparedNumber, comparison_table, numbered_notes, to_csv
from manyeyes.papers.exhibit import RULE_TEXT, Exhibit
from manyeyes.papers.paper_table import paper_csv, paper_tables
from manyeyes.papers.plan import ReproduceOptions, planned_runs
from manyeyes.papers.results import ExhibitResults
from manyeyes.report import report
from manyeyes.report.chart import Chart
from manyeyes.report.export import write_charts
from manyeyes.report.page import Block, ChartGrid, Folded, Section, page
from manyeyes.report.sections import code_block
from manyeyes.training.run_files import METRICS_FILE
from manyeyes.training.run_reader import read_run

MAX_REPORTED_RUNS = 60  # on a page, one by one
MAX_COMMANDS = 40  # on a page


def write(results: ExhibitResults, compared: list[ComparedNumber], charts: list[Chart]) -> Path:
    """Write all files, and return the path of the Markdown file."""
    exhibit, options = results.exhibit, results.options
    answers = [f"{choice}_{answer}" for choice, answer in options.other_answers.items()]
    name = "_".join(filter(None, [exhibit.name, options.folder_tag, *answers]))
    folder = Path(options.folder, exhibit.paper)
    folder.mkdir(parents=True, exist_ok=True)
    write_charts(charts, folder, prefix=f"{name}_")
    write_text(folder / f"{name}.csv", to_csv(compared, results.tag))
    if exhibit.columns:
        write_text(folder / f"{name}_as_printed.csv", paper_csv(exhibit, compared, results.tag))
    write_text(folder / f"{name}.html", html(results, compared, charts))
    path = folder / f"{name}.md"
    write_text(path, markdown(results, compared, [(chart.title, f"{name}_{chart.name}.svg") for chart in charts]))
    return path


def html(results: ExhibitResults, compared: list[ComparedNumber], charts: list[Chart]) -> str:
    """Return a page with charts and numbers, and with a report of the runs if there are not too many."""
    exhibit, options = results.exhibit, results.options
    title = f"{exhibit.key}: {exhibit.title}" + (f" ({results.tag})" if results.tag else "")
    notes = [f"The paper: {exhibit.claim}", results.disclaimer or RULE_TEXT, progress(exhibit, options), exhibit.note]
    tables = [
        *paper_tables(exhibit, compared, results.tag),
        comparison_table(compared, results.tag, "The paper's numbers and ours"),
    ]
    content: list[str | Block] = [*filter(None, notes), ChartGrid(charts), *tables, *numbered_notes(compared)]
    comparison = Section("Paper and measured", content)
    command = shlex.join(["manyeyes", "reproduce", exhibit.key, *options.arguments])
    blocks: list[str | Block] = [code_block(command), Folded("The runs", [code_block(run_commands(exhibit, options))])]
    reproduction = Section("Reproduce this page", blocks)
    folders = [run.folder for run in planned_runs(exhibit, options) if (run.folder / METRICS_FILE).exists()]
    if 0 < len(folders) <= MAX_REPORTED_RUNS:
        runs = [read_run(folder, _run_name(folder, options)) for folder in folders]
        return report.html(runs, title, [comparison, reproduction, *report.sections(runs)])
    lead = f"{len(folders):,} runs." if folders else "Datasets only, without runs."
    return page(title, lead, [comparison, reproduction])


def markdown(results: ExhibitResults, compared: list[ComparedNumber], images: list[tuple[str, str]]) -> str:
    """Return the numbers and images (title and file) as Markdown; runs that are not the paper's are disclaimed."""
    exhibit, options = results.exhibit, results.options
    paragraphs = [
        f"# {exhibit.key}: {exhibit.title}" + (f" ({results.tag})" if results.tag else ""),
        f"The paper: {exhibit.claim}" if exhibit.claim else "",
        f"**{results.disclaimer}**" if results.disclaimer else RULE_TEXT,
        f"    {shlex.join(['manyeyes', 'reproduce', exhibit.key, *options.arguments])}",
        progress(exhibit, options),
        *(f"![{title}]({file})" for title, file in images),
        *(f"{table.caption}\n\n{table.markdown()}".rstrip() for table in paper_tables(exhibit, compared, results.tag)),
        comparison_table(compared, results.tag).markdown().rstrip(),
        *numbered_notes(compared),
        exhibit.note.strip(),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def run_commands(exhibit: Exhibit, options: ReproduceOptions) -> str:
    """Return the first commands that train the runs of the exhibit one by one."""
    runs = list(planned_runs(exhibit, options))
    commands = [shlex.join(["manyeyes", "run", *run.overrides(options.extra)]) for run in runs[:MAX_COMMANDS]]
    commands += [f"... and {len(runs) - MAX_COMMANDS} more: see --plan"] if len(runs) > MAX_COMMANDS else []
    return "\n".join(commands)


def progress(exhibit: Exhibit, options: ReproduceOptions) -> str:
    """Return which runs are left out, or have not finished."""
    sentences = []
    if options.grid_filter:
        sentences.append(f"Only the runs of each grid whose names match {' or '.join(options.grid_filter)}.")
    statuses = Counter(run.status for run in planned_runs(exhibit, options))
    num_runs, num_diverged = statuses.total(), statuses["diverged"]
    if (num_done := statuses["finished"] + num_diverged) < num_runs:
        sentences += [f"Done so far: {num_done:,} of {num_runs:,} runs; each row shows its best finished run."]
    if num_diverged:
        sentences += [f"Diverged: {num_diverged:,} of {num_runs:,} runs; each row shows the best of the others."]
    return " ".join(sentences)


def _run_name(folder: Path, options: ReproduceOptions) -> str:
    """Return the name and seed of a run for a legend, with a word or two on how it differs from the paper's."""
    tags = {"scaled": options.scale != 1, "cut": options.rounds > 0, "synthetic": options.synthetic}
    text = ", ".join(tag for tag, applies in tags.items() if applies)
    return f"{text}{': ' if text else ''}{folder.parent.name}/{folder.name}"
