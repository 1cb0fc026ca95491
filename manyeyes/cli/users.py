"""`manyeyes users`: the score of each user in one or more runs, as a table and a chart."""

from pathlib import Path

from manyeyes.cli.parser import Parser
from manyeyes.io.files import write_text
from manyeyes.report.export import DEFAULT_FOLDER_HELP, default_folder, write_chart
from manyeyes.report.users import UserScores, load, user_chart, user_table

TERMINAL_WIDTH = 140  # characters


def main(argv: list[str]) -> int:
    """Print a row for each run, two if its clients personalize the model, and write the table and a chart."""
    description, example = "The score of each user in one or more runs.", "manyeyes users fedavg=runs/a ditto=runs/b"
    parser = Parser("manyeyes users", description=description, example=example)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders; NAME=FOLDER gives one a name")
    help = f"chart, .svg or .png; its table is next to it (users.svg in {DEFAULT_FOLDER_HELP})"
    parser.add_argument("--out", type=Path, help=help)
    args = parser.parse_args(argv)
    all_scores: list[UserScores] = []
    names, folders = set(), list[Path]()
    for color, run in enumerate(args.runs):
        given_name, _, folder = str(run).rpartition("=")
        name = given_name or Path(folder).name
        if name in names:
            raise ValueError(f"Two runs are called {name}: give each a name of its own, as NAME=FOLDER.")
        names.add(name)
        folders.append(Path(folder))
        all_scores += load(folders[-1], name, color)
    if len({scores.metric for scores in all_scores}) > 1:
        raise ValueError("Some runs are scored by accuracy, others by precision: give runs with the same metric.")
    table = user_table(all_scores)
    print(table.terminal(TERMINAL_WIDTH))
    out = args.out or default_folder(folders) / "users.svg"
    write_chart(user_chart(all_scores, ""), out)
    write_text(out.with_suffix(".md"), table.markdown())
    print(f"{out} and {out.with_suffix('.md')}")
    return 0
