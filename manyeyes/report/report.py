"""`manyeyes report`: runs on one page that needs nothing but itself, and their figures as files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyeyes.io.files import write_text
from manyeyes.report import details, overview
from manyeyes.report import sections as ledger
from manyeyes.report.curves import chart, explorer, groups, label, metrics, thinned
from manyeyes.report.export import write_charts
from manyeyes.report.page import ChartExplorer, Section, page
from manyeyes.training.run_record import RunRecord


def sections(runs: list[RunRecord], papers: Sequence[Section] = ()) -> list[Section]:
    """The parts of the page, those that the runs have something for."""
    together = groups(runs)
    first = overview.notes(runs)
    found: list[Section | None] = [Section("Summary", [*([first] if first else []), *overview.summary(runs)])]
    shown = metrics(runs)
    if shown:
        still = chart(runs, shown[0], "curves", label(shown[0]).capitalize(), _caption(runs))
        found.append(Section("Curves", [ChartExplorer(still, explorer(runs)), overview.curves(together)]))
    found += [*papers, details.classes(together), details.users(together), details.data(together)]
    found += [ledger.privacy_section(together), ledger.speed_section(together), ledger.reproduction_section(runs)]
    return [section for section in found if section is not None]


def html(runs: list[RunRecord], title: str, parts: list[Section]) -> str:
    done = sum(run.is_finished for run in runs)
    many = f"{len(runs)} runs, {'all' if done == len(runs) else done} finished." if len(runs) > 1 else _one(runs[0])
    return page(title, many, parts)


def write(
    runs: list[RunRecord], out: Path, title: str = "", papers: Sequence[Section] = (), figures: Path | None = None
) -> Any:
    """The page, and the figures where they are wanted."""
    parts = sections(runs, papers)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html(runs, title or default_title(runs), parts))
    charts = [chart for section in parts for chart in section.charts]
    if figures:
        write_charts(charts, figures)
    return len(charts) if figures else 0


def default_title(runs: list[RunRecord]) -> str:
    names = [group.name for group in groups(runs)]
    return " and ".join(names) if len(names) <= 2 else f"{len(runs)} runs"


def _one(run: RunRecord) -> str:
    what = (run.settings.get(f"{name}.name") for name in ("algorithm", "model", "data"))
    return ", ".join([*(str(word) for word in what if word), run.status]) + "."


def _caption(runs: list[RunRecord]) -> str:
    words = "Drag over a part to zoom in, double-click to zoom out; click a name to hide its curve."
    if any(len(group.runs) > 1 for group in groups(runs)):
        words += " Bands: mean and standard deviation over seeds, at rounds that all of them have."
    if thinned(runs):
        words += " Of many rounds those with the least and largest values are drawn."
    if any(overview.kept(run) for run in runs):
        words += " Last scores are those of the model that is kept (best_on), which may be of an earlier round."
    return words
