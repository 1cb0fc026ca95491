"""`manyeyes report`: runs on one self-contained page, and their charts as files."""

from collections.abc import Sequence
from pathlib import Path

from manyeyes.io.files import write_text
from manyeyes.report.curves import (
    data_caveat,
    explorer,
    group_runs,
    is_downsampled,
    metric_chart,
    metric_label,
    metrics,
)
from manyeyes.report.details import classes_section, data_section, users_section
from manyeyes.report.examples import examples_section
from manyeyes.report.export import write_charts
from manyeyes.report.findings import findings
from manyeyes.report.overview import best_model_note, notes, summary, training_charts
from manyeyes.report.page import ChartGrid, Section, page
from manyeyes.report.sections import privacy_section, reproduction_section, speed_section
from manyeyes.report.sweep import sweep_section
from manyeyes.training.run_record import RunRecord


def sections(runs: list[RunRecord], extra: Sequence[Section] = ()) -> list[Section]:
    """Return the sections that the runs have data for, with the extra ones after the curves."""
    groups, names = group_runs(runs), metrics(runs)
    content: list[Section | None] = [Section("Summary", [*notes(runs), *summary(runs)]), sweep_section(groups)]
    if names:
        label = metric_label(runs, names[0])
        title = label[0].upper() + label[1:]
        chart = metric_chart(groups, names[0], title, _explorer_caption(runs), name="curves")
        content.append(Section("Curves", [ChartGrid([chart], explorer(runs)), training_charts(groups)]))
    details = [examples_section(groups), classes_section(groups), users_section(groups), data_section(groups)]
    details += [privacy_section(groups), speed_section(groups), reproduction_section(runs)]
    first, last = ([s.with_caveat(data_caveat(runs)) for s in part if s is not None] for part in (content, details))
    return [*first, *extra, *last]


def html(runs: list[RunRecord], title: str, content: list[Section]) -> str:
    """Return the page; an empty title stands for the names of the runs."""
    groups = group_runs(runs)
    names = [group.name for group in groups]
    title = title or (" and ".join(names) if len(names) <= 2 else f"{len(runs)} runs")
    return page(title, findings(groups), content)


def write(
    runs: list[RunRecord], out: Path, title: str = "", extra: Sequence[Section] = (), figures: Path | None = None
) -> int:
    """Write the page, and its charts into the folder `figures`; return the number of charts that were written."""
    content = sections(runs, extra)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html(runs, title, content))
    if figures is None:
        return 0
    charts = [chart for section in content for chart in section.charts]
    write_charts(charts, figures)
    return len(charts)


def _explorer_caption(runs: list[RunRecord]) -> str:
    sentences = ["Drag to zoom in, double-click to zoom out; click a name to hide its curve."]
    if any(len(group.runs) > 1 for group in group_runs(runs)):
        sentences.append("Bands are the mean and standard deviation over seeds, at the rounds that all of them have.")
    if is_downsampled(runs):
        sentences.append("Of many rounds, those with the lowest and highest values are drawn.")
    if any(best_model_note(run) for run in runs):
        selected = "the selected model (select_best_on), which may be of an earlier round"
        sentences.append(f"Last scores are those of {selected}.")
    return " ".join(sentences)
