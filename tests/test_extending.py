"""Every recipe of docs/extending.md works as it is written: its file is written, and its command is run."""

import csv
import re
import shlex
from pathlib import Path

import pytest
import yaml

from manyeyes.cli import main
from manyeyes.training.run_record import find_runs

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
RECIPE = re.compile(r"^## (\d+)\. (.+?)\n.*?^`(\w+\.py)`\n```python\n(.*?)^```\n```\n(.*?)^```", re.M | re.S)
RECIPES = {title: (file, code, commands.splitlines()) for _, title, file, code, commands in RECIPE.findall(PAGE)}
SMALL = ["data.users=10", "data.images_per_user=6", "model.width=2", "algorithm.cohort_size=3", "engine=reference"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(command: str, *overrides: str) -> int:
    """Run a command of the page, with settings that make it small where the page does not set them."""
    program, *argv = shlex.split(command)
    assert program == "manyeyes", f"{command} is not a command of this package"
    if argv[0] == "run":
        chosen = {argument.partition("=")[0] for argument in argv}
        model_is_own = "model" in chosen
        small = [one for one in SMALL if one.partition("=")[0] not in chosen]
        small = [one for one in small if not (model_is_own and one.startswith("model."))]
        small = [one for one in small if not ("data" in chosen and one.startswith("data."))]
        argv += [*small, "folder=run", *overrides]
    return main(argv)


def test_the_page_has_ten_recipes() -> None:
    assert [int(number) for number, *_ in RECIPE.findall(PAGE)] == list(range(1, 11))


@pytest.mark.parametrize("title", RECIPES)
def test_recipe_runs_as_written(title: str, folder: Path) -> None:
    file, code, commands = RECIPES[title]
    (folder / file).write_text(code)
    for command in commands:
        assert run(command) == 0, f"{command} failed"
