"""Every recipe of docs/extending.md works as written: its file is written, and its command is run."""

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from manyeyes.cli import main
from manyeyes.training.run_names import find_runs

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
RECIPE = re.compile(r"^## (\d+)\. (.+?)\n.*?^`(\w+\.py)`\n```python\n(.*?)^```\n```\n(.*?)^```", re.M | re.S)
RECIPES = {title: (file, code, commands.splitlines()) for _, title, file, code, commands in RECIPE.findall(PAGE)}
SMALL = ["data.users=10", "data.images_per_user=6", "model.width=2", "algorithm.cohort_size=3", "engine=reference"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for file, *_ in RECIPES.values():  # imported by another test, from another folder
        sys.modules.pop(Path(file).stem, None)
    return tmp_path


def run(command: str, *overrides: str) -> int:
    """Run a command of the page, with settings that make it small where the page does not set them."""
    program, *argv = shlex.split(command)
    assert program == "manyeyes", f"{command} is not a command of this package"
    if argv[0] == "run":
        chosen = {argument.partition("=")[0] for argument in argv}
        model_is_own = "model" in chosen
        small = [setting for setting in SMALL if setting.partition("=")[0] not in chosen]
        small = [setting for setting in small if not (model_is_own and setting.startswith("model."))]
        small = [setting for setting in small if not ("data" in chosen and setting.startswith("data."))]
        argv += [*small, "folder=run", *overrides]
    return main(argv)


def test_the_page_has_ten_recipes() -> None:
    assert [int(number) for number, *_ in RECIPE.findall(PAGE)] == list(range(1, 11))


@pytest.mark.fast_cases("A loss", "A sampler", "A metric")
@pytest.mark.parametrize("title", RECIPES)
def test_recipe_runs_as_written(title: str, folder: Path) -> None:
    file, code, commands = RECIPES[title]
    (folder / file).write_text(code)
    for command in commands:
        assert run(command) == 0, f"{command} failed"


@pytest.mark.slow
@pytest.mark.parametrize("title", ["A server optimizer", "A model", "A metric", "An engine", "A dataset"])
def test_recipe_is_recorded_and_resumes(title: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, code, commands = RECIPES[title]
    (folder / file).write_text(code)
    assert run(commands[0]) == 0
    sources = yaml.safe_load((folder / "run" / "config.yaml").read_text())["sources"]
    assert [path.partition(":")[0] for path in sources] == [Path(file).stem]
    (folder / file).write_text(code + "\n# changed\n")
    assert main(["run", "resume=run", "rounds=3"]) == 0
    assert Path(file).stem in capsys.readouterr().err, "a changed source is named"
    assert find_runs(["run"])[0].rounds == 3


@pytest.mark.slow
def test_feddyn_of_the_page_is_the_one_of_the_package(folder: Path) -> None:
    file, code, (command,) = RECIPES["A gradient correction"]
    (folder / file).write_text(code)
    assert run(command) == 0
    own = (folder / "run" / "model.safetensors").read_bytes()
    builtin = command.replace("my_correction:FedDyn", "feddyn")
    assert run(builtin, "folder=builtin") == 0
    assert (folder / "builtin" / "model.safetensors").read_bytes() == own


@pytest.mark.slow
def test_timed_engine_writes_a_row_per_round(folder: Path) -> None:
    file, code, (command,) = RECIPES["An engine"]
    (folder / file).write_text(code)
    assert run(command) == 0
    assert [row[:2] for row in csv.reader((folder / "seconds.csv").open())] == [["0", "3"], ["1", "3"]]
