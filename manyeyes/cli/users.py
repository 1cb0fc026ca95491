"""`manyeyes users`: every user's own result in some runs, printed and drawn."""

from pathlib import Path

from rich.console import Console

from manyeyes.cli.parser import Parser
from manyeyes.io.files import write_bytes, write_text
from manyeyes.report.figures import render
from manyeyes.report.users import UserScores, draw, load, markdown, table


def main(words: list[str]) -> int:
    """A row and a line for each run, two where its clients adapt the model."""
    parser = Parser("manyeyes users", description="Every user's own result, runs side by side.")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders; NAME=FOLDER gives one a name")
    parser.add_argument("--out", type=Path, default=Path("users.png"), help="the picture; a table goes beside it")
    given = parser.parse_args(words)
    found: dict[str, UserScores] = {}
    for run in given.runs:
        given_name, _, folder = str(run).rpartition("=")
        name = given_name or Path(folder).name
        if name in found:
            raise ValueError(f"two runs are called {name}: give each a name of its own, as NAME=FOLDER")
        found |= {name + which: scores for which, scores in load(Path(folder)).items()}
    if len({one.metric for one in found.values()}) > 1:
        raise ValueError(
            "some of these runs are scored by accuracy and some by average precision: give runs of one kind"
        )
    Console(width=140).print(table(found))
    picture = render(draw(found), given.out.suffix.lstrip(".") or "png")
    write_bytes(given.out, picture)
    write_text(given.out.with_suffix(".md"), markdown(found))
    print(f"{given.out} and {given.out.with_suffix('.md')}")
    return 0
