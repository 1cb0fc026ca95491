"""`python -m manyeyes.flair`: the commands of the baseline's README, on a stand-in in the baseline's own format."""

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
from manyeyes.training.run_folder import read_events

README = Path(__file__).resolve().parents[2] / "shared" / "seeds" / "flair-baseline-readme.md"
SMALL = ("num_clients_per_round=2", "num_rounds=1", "evaluation_frequency=1", "client.batch_size=8")
HERE = ("model=linear", "model.weights=", "augment.crop=0", "engine=reference", "engine.threads=1")


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """The words that `manyeyes run` would get, with data that is there."""
    heard: list[str] = []
    monkeypatch.setattr(flair_command, "run", lambda words: heard.extend(words) or 0)
    monkeypatch.setattr(flair_command, "_found", lambda: "data/flair")

    def translate(*words: str) -> dict[str, str]:
        heard.clear()
        assert flair_command.flair(list(words)) == 0
        return {name: value for name, _, value in (word.partition("=") for word in heard)}

    return translate


@pytest.mark.parametrize(
    ("words", "weights", "norm", "rate", "task"),
    [
        ("pretrained=false", None, "group", "0.1", "coarse"),
        ("", "imagenet", "frozen_batch", "0.01", "coarse"),
        ("pretrained=false dataset.use_fine_grained_labels=true", None, "group", "0.1", "fine"),
        ("dataset.use_fine_grained_labels=true", "imagenet", "frozen_batch", "0.01", "fine"),
    ],
)
def test_a_command_of_the_readme_is_a_row_of_table_1(
    translated: Callable[..., dict[str, str]], words: str, weights: str | None, norm: str, rate: str, task: str
) -> None:
    found = translated(*words.split())
    assert (found.get("model.weights"), found["model.norm"]) == (weights, norm)
    assert (found["algorithm.lr"], found["data.task"]) == (rate, task)
    wanted = {"model": "resnet18", "algorithm": "fedadam", "rounds": "5000", "algorithm.cohort": "200"}
    wanted |= {"algorithm.server_beta2": "0.99", "algorithm.server_tau": "0.01", "algorithm.server_lr": "0.1"}
    assert {name: found[name] for name in wanted} == wanted


def test_these_are_all_the_commands_of_the_readme(translated: Callable[..., dict[str, str]]) -> None:
    if not README.exists():
        pytest.skip(f"needs {README}, which is not part of the project")
    commands = re.findall(r"python -m flair\.main(.*)", README.read_text())
    assert len(commands) == 5
    for command in commands:
        assert translated(*shlex.split(command))["algorithm"] == "fedadam"


def test_settings_of_the_baseline_have_ours(translated: Callable[..., dict[str, str]]) -> None:
    found = translated(
        "central_learning_rate=0.05",
        "client.client_learning_rate=0.2",
        "dataset.max_num_user_images=64",
        "strategy.beta_2=0.999",
        "client.epochs_per_round=3",
        "dataset.data_path=my.hdf5",
        "gpus_per_client=0.2",
        "num_cpus=40",
    )
    wanted = {"algorithm.server_lr": "0.05", "algorithm.lr": "0.2", "algorithm.limit": "64", "data.path": "my.hdf5"}
    wanted |= {"algorithm.server_beta2": "0.999", "algorithm.epochs": "3"}
    assert {name: found[name] for name in wanted} == wanted
    assert not any("cpus" in name or "gpus" in name for name in found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pretrained=maybe"], "pretrained is 'maybe': it must be true or false"),
        (["dataset.use_fine_grained_labels=1"], "dataset.use_fine_grained_labels is '1'"),
        ([], "there is no data in data/flair or data/flair_federated.hdf5: give dataset.data_path=PATH, or prepare it"),
        (["dataset.data_path=none.hdf5"], "none.hdf5"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(words: list[str], sentence: str, command: Any) -> None:
    found = command("flair", *words)
    assert found.code == 1
    assert sentence in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("fine", ["true", "false"])
def test_the_readmes_command_on_a_stand_in(command: Any, tmp_path: Path, fine: str) -> None:
    make = ("--raw", "raw", "--users", "20", "--photos", "3", "--size", "32", "--coarse", "5", "--fine", "12")
    assert command("data", "make", "flair", *make).code == 0
    assert command("data", "prepare", "flair", "--raw", "raw", "--size", "32").code == 0
    words = ("pretrained=false", f"dataset.use_fine_grained_labels={fine}")
    found = command("flair", *words, *SMALL, *HERE, "folder=here")
    assert (found.code, found.err) == (0, "")
    last = read_events(tmp_path / "here" / "metrics.jsonl")[-1]
    assert {"macro_ap", "micro_ap", "best_round"} <= set(last)
    assert yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())["data"]["path"] == "data/flair"


def test_the_module_is_the_command(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    out, _ = spawn("-m", "manyeyes.flair", "--help").communicate(timeout=60)
    assert out.startswith("usage: manyeyes flair")
