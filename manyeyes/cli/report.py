"""`manyeyes report`: runs on one page."""

from argparse import Namespace
from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.core.registry import import_object
from manyeyes.io.steps import announce, shows_progress
from manyeyes.report.export import DEFAULT_FOLDER_HELP, default_folder
from manyeyes.report.report import write
from manyeyes.training.progress import show_progress
from manyeyes.training.run_files import check_version
from manyeyes.training.run_names import find_runs

HELP = """RUN is a run's folder, NAME=FOLDER to give it another name, or a folder of runs such as a sweep's. Runs that
differ only in their seed are drawn as one curve with a band."""
EXAMPLE = "manyeyes report fedavg=runs/first fedvc=runs/second --out report.html"


def main(argv: list[str]) -> int:
    parser = Parser(
        "manyeyes report", description="Runs on one self-contained HTML page.", epilog=HELP, example=EXAMPLE
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders of them")
    parser.add_argument("--out", type=Path, help=f"the page (report.html in {DEFAULT_FOLDER_HELP})")
    parser.add_argument("--title", default="", help="its heading")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write every chart there, as SVG and as CSV")
    parser.add_argument("--paper", metavar="PAPER.NAME", help="show a paper's numbers too: see reproduce --list")
    parser.add_argument("--section", action="append", default=[], metavar="MODULE:FUNCTION", help="add one of your own")
    args = parser.parse_args(argv)
    with show_progress("report", shows_progress()):
        announce("reading the runs")
        return _write_report(args)


def _write_report(args: Namespace) -> int:
    runs = find_runs(args.runs)
    for run in runs:
        check_version(run.folder)
    out = args.out or default_folder([run.folder for run in runs]) / "report.html"
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name the page, such as {out / 'report.html'}")
    from manyeyes.papers.report_section import paper_sections  # which loads all papers

    own_sections = [import_object(path, "--section")(runs) for path in args.section]
    sections = [*paper_sections(runs, args.paper), *(section for section in own_sections if section is not None)]
    num_charts = write(runs, out, args.title, sections, args.figures)
    print(f"Report: {out}" + (f", and {num_charts} charts in {args.figures}" if args.figures else ""))
    return 0
