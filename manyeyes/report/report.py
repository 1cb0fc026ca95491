"""`manyeyes report`: runs on one page that needs nothing but itself, and their figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyeyes.io.files import write_text
from manyeyes.report import details, overview
from manyeyes.report import sections as ledger
from manyeyes.report.chart import Chart, Grid
from manyeyes.report.curves import as_json, chart, explorer, groups, label, metrics, thinned
from manyeyes.report.page import Section, page
from manyeyes.training.run_record import RunRecord


@dataclass(frozen=True)
class Explorer:
    """The chart whose metric and x a person chooses; `still` is it as first shown."""

    still: Chart

    def html(self) -> str:
        return f'<div id="explorer" class="explorer">{self.still.html()}</div>'


def sections(runs: list[RunRecord], papers: Sequence[Section] = ()) -> list[Section]:
    """The parts of the page, those that the runs have something for."""
    together = groups(runs)
    first = overview.notes(runs)
    found: list[Section | None] = [Section("Summary", [*([first] if first else []), *overview.summary(runs)])]
    shown = metrics(runs)
    if shown:
        still = chart(runs, shown[0], "curves", label(shown[0]).capitalize(), _caption(runs))
        found.append(Section("Curves", [Explorer(still), overview.curves(together)]))
    found += [*papers, details.classes(together), details.users(together), details.data(together)]
    found += [ledger.privacy_section(together), ledger.speed_section(together), ledger.reproduction_section(runs)]
    return [section for section in found if section is not None]


def html(runs: list[RunRecord], title: str, parts: list[Section]) -> str:
    data = {"charts": {each.key: each.spec() for each in charts(parts)}, "explorer": explorer(runs)}
    done = sum(run.is_finished for run in runs)
    many = f"{len(runs)} runs, {'all' if done == len(runs) else done} finished." if len(runs) > 1 else _one(runs[0])
    style = _own("charts.css") + _own("report.css")
    return page(title, many, parts, style, [_own("charts.js"), _own("report.js")], as_json(data))


def charts(parts: Sequence[Section]) -> list[Chart]:
    """Every chart of the page."""
    found: list[Chart] = []
    for part in parts:
        for block in part.content:
            found += block.charts if isinstance(block, Grid) else [block.still] if isinstance(block, Explorer) else []
    return found


def write_figures(parts: Sequence[Section], folder: Path) -> int:
    """Every chart as SVG and as CSV; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    found = charts(parts)
    for each in found:
        write_text(folder / f"{each.key}.svg", each.svg() + "\n")
        write_text(folder / f"{each.key}.csv", each.csv())
    return len(found)


def write(
    runs: list[RunRecord], out: Path, title: str = "", papers: Sequence[Section] = (), figures: Path | None = None
) -> Any:
    """The page, and the figures where they are wanted."""
    parts = sections(runs, papers)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html(runs, title or default_title(runs), parts))
    return write_figures(parts, figures) if figures else 0


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


def _own(name: str) -> str:
    return files("manyeyes.report").joinpath(name).read_text(encoding="utf-8")
