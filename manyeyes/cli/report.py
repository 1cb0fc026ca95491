"""`manyeyes report`: some runs on one page."""

from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.core.registry import import_object
from manyeyes.report.report import write
from manyeyes.training.run_record import find_runs

HELP = """RUN is a run's folder, NAME=FOLDER to call it something else, or a folder of runs such as a sweep's. Runs that
differ by their seed alone are drawn as one curve with a band."""


def main(words: list[str]) -> int:
    """Read the runs, write the page, say where it is."""
    parser = Parser("manyeyes report", description="Runs on one self-contained HTML page.", epilog=HELP)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders of them")
    parser.add_argument("--out", type=Path, help="the page (report.html in the run's folder, or here for several)")
    parser.add_argument("--title", default="", help="its heading")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write every chart there, as SVG and as CSV")
    parser.add_argument("--paper", metavar="PAPER.ITEM", help="show what a paper printed beside: see reproduce --list")
    parser.add_argument(
        "--section", action="append", default=[], metavar="MODULE:FUNCTION", help="add a section of your own"
    )
    given = parser.parse_args(words)
    runs = find_runs(given.runs)
    out = given.out or (runs[0].folder / "report.html" if len(runs) == 1 else Path("report.html"))
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name the page, such as {out / 'report.html'}")
    from manyeyes.papers.report_section import paper_sections  # which loads all papers

    own = [section for path in given.section if (section := import_object(path, "--section")(runs)) is not None]
    figures = write(runs, out, given.title, [*paper_sections(runs, given.paper), *own], given.figures)
    print(f"Report: {out}" + (f", and {figures} figures in {given.figures}" if given.figures else ""))
    return 0
