"""The examples of the README and the documentation: Python blocks run, and commands have settings and flags that exist."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import manyeyes.training.train
from manyeyes.cli import COMMANDS, command
from manyeyes.cli.parser import Parser
from manyeyes.config.compose import compose_config

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
OWN_TEST = ("docs/extending.md",)  # its files and commands run in test_extending.py
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
CODE = re.compile(r"^```\n(.*?)^```|^ {4}(?=manyeyes |torchrun )(.*?)(?=\n\S|\n\n|\Z)", re.M | re.S)
MAX_ROUNDS = 2  # of a training in an example
VARIABLES = {
    "$DATA": "data.users=200 data.images_per_user=20 data.coarse=4 data.fine=8",
    "$LOCAL": "rounds=60 algorithm.batch_size=10 algorithm.lr=0.03",
    "$SETTINGS": "'model=linear rounds=2'",
    "$PWD": "here",
    "$alpha": "0.1",
    "data=NAME": "data=cifar10",
    "algorithm=NAME": "algorithm=fedavg",
}
READERS_VARIABLES = {  # what a page says that its reader has
    "docs/data.md": {
        "grey": np.zeros((20, 28, 28), np.uint8),
        "digit": np.arange(20) % 10,
        "writer": np.arange(20) // 5,
    }
}
NEEDS = {"docs/models.md": "timm"}  # the fixture of what a page imports
PHOTOS = 20  # of the table that docs/data.md reads
LEAF_FILE = {"user_data": {"f0001_41": {"x": [[0.5] * 784], "y": [3]}}}


def commands(text: str) -> Iterator[str]:
    """Yield each command of a page on example line, without the comment behind it; a synopsis is left out."""
    for block in CODE.finditer(text):
        for line in re.sub(r" *\\\n\s*", " ", block[1] or block[2]).splitlines():
            example = re.split(r"\s{2,}|\s#", line.strip())[0]
            is_synopsis = " [" in example or "..." in example or " (" in example
            if example.startswith("manyeyes ") and not is_synopsis:
                yield example


EXAMPLES = [(page, example) for page, text in PAGES.items() if page not in OWN_TEST for example in commands(text)]


class Parsed(Exception):
    """The arguments of a command were accepted."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command stop once it has read its arguments."""
    parse: Callable[..., Any] = Parser.parse_args

    def parse_args(self: Parser, *args: Any, **options: Any) -> Any:
        parse(self, *args, **options)
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse_args)


def first_values(overrides: list[str]) -> list[str]:
    """Return the settings of the first run of a sweep."""
    settings = [
        example for example in overrides if "=" in example and not example.startswith(("hydra", "-", "resume="))
    ]
    return [example if "[" in example else example.partition(",")[0] for example in settings]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[f"{page}: {example}"[:90] for page, example in EXAMPLES])
def test_a_command_has_settings_and_flags_that_exist(page: str, example: str, parse_only: None) -> None:
    for name, value in VARIABLES.items():
        example = example.replace(name, value)
    _, name, *args = shlex.split(example)
    if ":" in name or any(":" in arg and "=" in arg and "my" in arg for arg in args):
        return  # a user's own component, which the page does not define
    assert name in COMMANDS
    if name in ("run", "estimate") and "--help" not in args:
        compose_config(first_values(args))
    elif name not in ("run", "estimate", "reproduce", "fedper", "flair", "doctor", "demo"):
        with pytest.raises(Parsed):
            command(name)(args)


# Smaller values of the settings and flags of a tutorial's commands, so that the whole page runs in seconds.
SMALLER = {"rounds": "2", "data.users": "20", "data.images_per_user": "6", "algorithm.cohort_size": "4"}
SMALLER_FLAGS = {"--users": "10", "--images-per-user": "6", "--size": "32"}
TUTORIALS = ("README.md", "docs/index.md", "docs/getting_started.md", "docs/deploying.md")
NOT_HERE = re.compile(r"dashboard|make |pip |doctor|demo|source |python -m venv|torchrun")  # elsewhere


def tutorial_commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of the blocks of a page in order, as arguments, with the variables that it exports."""
    variables: dict[str, str] = {}
    for line in "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S)).splitlines():
        if exported := re.fullmatch(r'export (\w+)="(.*)"', line):
            variables[exported[1]] = exported[2]
        elif line.startswith("manyeyes ") and not NOT_HERE.search(line):
            expanded = re.sub(r"\$(\w+)", lambda name: variables[name[1]], line.split("  #")[0])
            yield shlex.split(expanded, comments=True)[1:]


def smaller(args: list[str]) -> list[str]:
    """Return the arguments of a command with smaller sizes; runs have at least two rounds more when they continue."""
    pairs = [arg.partition("=") for arg in args]
    is_resumed = any(name == "resume" for name, _, _ in pairs)
    sizes = SMALLER | ({"rounds": "4"} if is_resumed else {})
    args = [f"{name}={sizes[name]}" if name in sizes else "".join((name, *rest)) for name, *rest in pairs]
    for flag, value in SMALLER_FLAGS.items():
        if flag in args:
            args[args.index(flag) + 1] = value
    is_run = args[0] == "run" and not is_resumed and "--help" not in args
    chosen = {name for name, _, _ in pairs}
    synthetic = {} if "data" in chosen else {name: SMALLER[name] for name in ("data.users", "data.images_per_user")}
    missing = {"engine": "reference", "rounds": "2", "algorithm.cohort_size": "4", "model.width": "4"} | synthetic
    return [*args, *(f"{name}={value}" for name, value in missing.items() if name not in chosen)] if is_run else args


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS)
def test_the_commands_of_a_tutorial_run_in_order(page: str, command: Callable[..., Any], tmp_path: Path) -> None:
    """Every command of a page ends with 0, after those before it; `runs/NAME` is a run of the page."""
    executed = 0
    for args in tutorial_commands(PAGES[page]):
        prepare_for(args, tmp_path)
        args = [one for word in smaller(args) for one in expanded(word, tmp_path)]
        outcome = command(*args)
        assert outcome.code == 0, f"{shlex.join(args)}: {outcome.err}"
        executed += 1
    assert executed >= 2


def expanded(word: str, folder: Path) -> list[str]:
    """Return the paths that a pattern in a word matches, as a shell does it, or else the word; anna is the first user."""
    if word == "anna":
        return ["0"]
    return [str(path.relative_to(folder)) for path in sorted(folder.glob(word))] if "*" in word else [word]


def prepare_for(args: list[str], folder: Path) -> None:
    """Make what a page says that its reader has: photos of their own, and runs with a name."""
    from manyeyes.cli import main

    if "--raw" in args and not (folder / "photos").exists():
        sizes = [word for flag in SMALLER_FLAGS.items() for word in flag]
        assert main(["data", "synthesize", "folder", "--raw", "photos", *sizes]) == 0
    everyone = {"algorithm": "fedper", "data.split": "per_user", "algorithm.cohort_size": SMALLER["data.users"]}
    named: dict[str, dict[str, str]] = {"runs/NAME1": {}, "runs/NAME2": {}, "runs/first": {}, "runs/fedper": everyone}
    for run, settings in named.items():
        is_needed = run in args and args[0] != "run" and not (folder / run).exists()
        if is_needed:
            chosen = SMALLER | settings | {"engine": "reference", "folder": run}
            assert main(["run", *(f"{name}={value}" for name, value in chosen.items())]) == 0
    for photo in (word for word in args if word.startswith("photo") and word.endswith((".jpg", ".png"))):
        PIL.Image.new("RGB", (40, 30), "red").save(folder / photo)


def write_photos(folder: Path) -> None:
    """Write photos of ten users, and a table of them."""
    rows = ["path,user,label"]
    for number in range(PHOTOS):
        path = folder / f"{number}.png"
        PIL.Image.new("RGB", (40, 30), (number, 0, 0)).save(path)
        rows.append(f"{path},{number % 10},{number % 2}")
    (folder / "photos.csv").write_text("\n".join(rows))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if PYTHON.search(text) and page not in OWN_TEST])
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each training is cut to two rounds."""
    if page in NEEDS:
        request.getfixturevalue(NEEDS[page])
    train: Callable[..., Any] = manyeyes.training.train.train

    def train_briefly(*args: Any, **options: Any) -> Any:
        return train(
            *args, **options | {"rounds": min(options.get("rounds", MAX_ROUNDS), MAX_ROUNDS), "progress": False}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(manyeyes.training.train, "train", train_briefly)
    (tmp_path / "all_data_0.json").write_text(json.dumps(LEAF_FILE))
    write_photos(tmp_path)
    names: dict[str, Any] = dict(READERS_VARIABLES.get(page, {}))
    for block in PYTHON.findall(PAGES[page]):
        exec(compile(block, page, "exec"), names)
