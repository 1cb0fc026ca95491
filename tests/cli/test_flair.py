"""`python -m manyeyes.flair`: the commands of the baseline's README, on synthetic images in the baseline's own format."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from manyeyes.cli import flair as flair_command
from manyeyes.cli import run
from manyeyes.training.run_folder import read_events

README = Path(__file__).resolve().parents[2] / "shared" / "seeds" / "flair-baseline-readme.md"
SMALL = ("num_clients_per_round=2", "num_rounds=1", "evaluation_frequency=1", "client.batch_size=8")
TINY_MODEL = ("model=linear", "model.norm=null", "preprocess.crop=0", "engine=reference", "engine.threads=1")


@pytest.fixture
def translate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the settings that `manyeyes run` would get, if the data existed."""
    received: list[str] = []

    def receive(argv: list[str]) -> int:
        received.extend(argv)
        return 0

    monkeypatch.setattr(run, "main", receive)
    monkeypatch.setattr(flair_command, "_find_data", lambda: "data/flair")

    def translate(*argv: str) -> dict[str, str]:
        received.clear()
        assert flair_command.main(list(argv)) == 0
        return {name: value for name, _, value in (argument.partition("=") for argument in received)}

    return translate


@pytest.mark.parametrize(
    ("argv", "pretrained", "norm", "lr", "task"),
    [
        ("pretrained=false", None, "group", "0.1", "coarse"),
        ("", "imagenet", "frozen", "0.01", "coarse"),
        ("pretrained=false dataset.use_fine_grained_labels=true", None, "group", "0.1", "fine"),
        ("dataset.use_fine_grained_labels=true", "imagenet", "frozen", "0.01", "fine"),
    ],
)
def test_a_command_of_the_readme_is_a_row_of_table_1(
    translate: Callable[..., dict[str, str]], argv: str, pretrained: str | None, norm: str, lr: str, task: str
) -> None:
    settings = translate(*argv.split())
    assert (settings.get("model.pretrained"), settings["model.norm"]) == (pretrained, norm)
    assert (settings["algorithm.lr"], settings["data.task"]) == (lr, task)
    expected = {"model": "resnet18", "algorithm": "fedadam", "rounds": "5000", "algorithm.cohort_size": "200"}
    expected |= {"server_optimizer.beta2": "0.99", "server_optimizer.tau": "0.01", "server_optimizer.lr": "0.1"}
    assert {name: settings[name] for name in expected} == expected


def test_every_command_of_the_readme_is_translated(translate: Callable[..., dict[str, str]]) -> None:
    if not README.exists():
        pytest.skip(f"needs {README}, which is not part of the project")
    commands = re.findall(r"python -m flair\.main(.*)", README.read_text())
    assert len(commands) == 5
    for command in commands:
        assert translate(*shlex.split(command))["algorithm"] == "fedadam"


def test_settings_of_the_baseline_are_translated(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate(
        "central_learning_rate=0.05",
        "client.client_learning_rate=0.2",
        "dataset.max_num_user_images=64",
        "strategy.beta_2=0.999",
        "client.epochs_per_round=3",
        "dataset.data_path=my.hdf5",
        "gpus_per_client=0.2",
        "num_cpus=40",
    )
    expected = {"server_optimizer.lr": "0.05", "server_optimizer.beta2": "0.999", "algorithm.lr": "0.2"}
    expected |= {"algorithm.max_examples": "64", "algorithm.epochs": "3", "data.path": "my.hdf5"}
    assert {name: settings[name] for name in expected} == expected
    assert not any("cpus" in name or "gpus" in name for name in settings)


def test_both_label_sets_are_a_sweep_over_tasks(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("--multirun", "dataset.use_fine_grained_labels=true,false")
    assert settings["data.task"] == "fine,coarse"
    assert "--multirun" in settings


def test_a_resumed_run_gets_only_the_changes(translate: Callable[..., dict[str, str]]) -> None:
    assert translate("resume=runs/mine", "num_rounds=60") == {"resume": "runs/mine", "rounds": "60"}


def test_own_settings_take_precedence(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("data=synthetic", "rounds=3", "evaluation_frequency=2")
    assert (settings["data"], settings["rounds"], settings["evaluate_every"]) == ("synthetic", "3", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["pretrained=maybe"], "pretrained is 'maybe': it must be true or false"),
        (["dataset.use_fine_grained_labels=1"], "dataset.use_fine_grained_labels is '1'"),
        ([], "No data at data/flair or data/flair_federated.hdf5: give dataset.data_path=PATH, or prepare it"),
        (["dataset.data_path=none.hdf5"], "none.hdf5"),
    ],
)
def test_a_mistake_is_one_sentence(argv: list[str], sentence: str, command: Any) -> None:
    outcome = command("flair", *argv)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_fine", ["true", "false"])
def test_the_command_of_the_readme_on_synthetic_images(command: Any, tmp_path: Path, is_fine: str) -> None:
    options = (
        "--raw",
        "raw",
        "--users",
        "20",
        "--images-per-user",
        "3",
        "--size",
        "32",
        "--coarse",
        "5",
        "--fine",
        "12",
    )
    assert command("data", "synthesize", "flair", *options).code == 0
    assert command("data", "prepare", "flair", "--raw", "raw", "--size", "32").code == 0
    settings = ("pretrained=false", f"dataset.use_fine_grained_labels={is_fine}")
    outcome = command("flair", *settings, *SMALL, *TINY_MODEL, "folder=run")
    assert (outcome.code, outcome.err) == (0, "")
    last = read_events(tmp_path / "run" / "metrics.jsonl")[-1]
    assert {"macro_ap", "micro_ap", "best_round"} <= set(last)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["path"] == "data/flair"


@pytest.mark.parametrize("module", ["manyeyes.flair", "manyeyes.flair.main"])
def test_the_module_is_the_command(spawn: Callable[..., subprocess.Popen[str]], module: str) -> None:
    out, _ = spawn("-m", module, "--help").communicate(timeout=60)
    assert out.startswith("usage: manyeyes flair")
