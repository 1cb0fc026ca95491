"""`manyeyes report`: runs on one self-contained page, and their charts as files."""

from collections.abc import Sequence
from pathlib import Path

from manyeyes.io.files import write_text
from manyeyes.report.curves import explorer, group_runs, is_downsampled, label, metric_chart, metrics
from manyeyes.report.details import classes_section, data_section, users_section
from manyeyes.report.export import write_charts
from manyeyes.report.overview import best_model_note, notes, summary, training_charts
from manyeyes.report.page import ChartExplorer, Section, page
from manyeyes.report.sections import privacy_section, reproduction_section, speed_section
from manyeyes.training.run_record import RunRecord


def sections(runs: list[RunRecord], paper_sections: Sequence[Section] = ()) -> list[Section]:
    """Return the sections that the runs have data for."""
    groups, names = group_runs(runs), metrics(runs)
    content: list[Section | None] = [Section("Summary", [*notes(runs), *summary(runs)])]
    if names:
        chart = metric_chart(runs, names[0], label(names[0]).capitalize(), _explorer_caption(runs), name="curves")
        content.append(Section("Curves", [ChartExplorer(chart, explorer(runs)), training_charts(runs)]))
    content += [*paper_sections, classes_section(groups), users_section(groups), data_section(groups)]
    content += [privacy_section(groups), speed_section(groups), reproduction_section(runs)]
    return [section for section in content if section is not None]


def html(runs: list[RunRecord], title: str, content: list[Section]) -> str:
    """Return the page."""
    num_finished = sum(run.is_finished for run in runs)
    finished = "all" if num_finished == len(runs) else num_finished
    return page(title, f"{len(runs)} runs, {finished} finished." if len(runs) > 1 else _describe(runs[0]), content)


def write(
    runs: list[RunRecord],
    out: Path,
    title: str = "",
    paper_sections: Sequence[Section] = (),
    figures: Path | None = None,
) -> int:
    """Write the page, and its charts into the folder `figures`; return the number of charts that were written."""
    content = sections(runs, paper_sections)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html(runs, title or default_title(runs), content))
    if figures is None:
        return 0
    charts = [chart for section in content for chart in section.charts]
    write_charts(charts, figures)
    return len(charts)


def default_title(runs: list[RunRecord]) -> str:
    names = [group.name for group in group_runs(runs)]
    return " and ".join(names) if len(names) <= 2 else f"{len(runs)} runs"


def _describe(run: RunRecord) -> str:
    """Return a run in a few words."""
    names = (run.settings.get(f"{group}.name") for group in ("algorithm", "model", "data"))
    return ", ".join([*(str(name) for name in names if name), run.status]) + "."


def _explorer_caption(runs: list[RunRecord]) -> str:
    sentences = ["Drag to zoom in, double-click to zoom out; click a name to hide its curve."]
    if any(len(group.runs) > 1 for group in group_runs(runs)):
        sentences.append("Bands are the mean and standard deviation over seeds, at the rounds that all of them have.")
    if is_downsampled(runs):
        sentences.append("Of many rounds, those with the lowest and highest values are drawn.")
    if any(best_model_note(run) for run in runs):
        sentences.append(
            "Last scores are those of the selected model (select_best_on), which may be of an earlier round."
        )
    return " ".join(sentences)
