"""Charts as files: SVG, PNG and CSV."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from manyeyes.io.files import write_bytes, write_text
from manyeyes.io.packages import import_optional
from manyeyes.report.chart import Chart
from manyeyes.report.page import Section, page
from manyeyes.report.svg import render_svg

PNG_ZOOM = 2  # pixels per unit of the SVG
DEFAULT_FOLDER_HELP = "the run's folder; of several runs, in the folder that contains them"


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart as SVG or as PNG, by the suffix of the path; PNG needs the package resvg-py."""
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path} ends neither in .svg nor in .png: charts are written in one of these formats.")
    write_bytes(path, render_png(chart) if path.suffix == ".png" else _svg_file(chart))


def write_charts(charts: Sequence[Chart], folder: Path, prefix: str = "") -> None:
    """Write each chart as SVG and CSV, and as PNG if `resvg_py` is installed."""
    formats = {".svg": _svg_file, ".csv": lambda chart: chart.csv().encode()}
    formats |= {".png": render_png} if can_write_png() else {}
    files = {f"{prefix}{chart.name}{suffix}": form(chart) for chart in charts for suffix, form in formats.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_bytes(folder / name, data)


def write_page_folder(folder: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write a page as `index.html`, and its charts as files next to it."""
    html = page(title, lead, sections)
    write_charts([chart for section in sections for chart in section.charts], folder)
    write_text(folder / "index.html", html)


def default_folder(runs: Sequence[Path]) -> Path:
    """Return where a page or chart of runs belongs: the folder of the one run, or that in which several runs are.

    The working directory stands for the root of the file system, where nothing can be written.
    """
    if len(runs) == 1:
        return runs[0]
    shared, working_folder = Path(os.path.commonpath([run.absolute().parent for run in runs])), Path.cwd()
    if shared == Path(shared.anchor):
        return Path()
    return shared.relative_to(working_folder) if shared.is_relative_to(working_folder) else shared


def can_write_png() -> bool:
    return find_spec("resvg_py") is not None


def render_png(chart: Chart) -> bytes:
    data: bytes = import_optional("resvg_py").svg_to_bytes(svg_string=render_svg(chart), zoom=PNG_ZOOM)
    return data


def _svg_file(chart: Chart) -> bytes:
    return f"{render_svg(chart)}\n".encode()
