"""`python -m manyeyes.fedper`: the baseline's commands, on stand-ins that go through the real preparation."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from manyeyes.cli import fedper as fedper_command
from manyeyes.data.partition import repartition
from manyeyes.data.store.reader import open_population
from manyeyes.training.run_folder import read_events

README = [
    "--multirun",
    "--config_name",
    "cifar10",
    "dataset.num_classes=4,8,10",
    "model_name=resnet,mobile",
    "algorithm=fedper,fedavg",
    "model.num_head_layers=2,3",
    "+repeat_num=range(5)",
]
SMALL = ("num_rounds=1", "num_epochs=1", "model.norm=group", "engine=reference", "engine.threads=1", "batch_size=16")
CIFAR = (*SMALL, "augment.crop=0", "augment.scale_min=0", "num_clients=4", "clients_per_round=4")


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The words that `manyeyes run` would get, with data that is there."""
    heard: list[str] = []
    monkeypatch.setattr(fedper_command, "run", lambda words: heard.extend(words) or 0)
    monkeypatch.setattr(fedper_command, "_have_data", lambda *where: None)

    def translate(*words: str) -> dict[str, str]:
        heard.clear()
        assert fedper_command.fedper(list(words)) == 0
        return {name: value for name, _, value in (word.partition("=") for word in heard)}

    return translate


def test_the_command_of_the_readme_is_a_sweep_of_ours(translated: Callable[..., dict[str, str]]) -> None:
    found = translated(*README)
    assert "--multirun" in found
    wanted = {
        "data.classes_per_client": "4,8,10",
        "model": "resnet34,mobilenet_v1",
        "algorithm": "fedper,fedavg",
        "algorithm.head_layers": "2,3",
        "seed": "range(5)",
        "data": "cifar10",
        "rounds": "50",
    }
    assert {name: found[name] for name in wanted} == wanted


def test_without_words_it_is_the_baselines_default(translated: Callable[..., dict[str, str]]) -> None:
    found = translated()
    wanted = {"algorithm": "fedavg", "model": "mobilenet_v1", "algorithm.epochs": "4", "algorithm.batch": "128"}
    wanted |= {"algorithm.lr": "0.01", "algorithm.momentum": "0.9", "data.users": "10", "algorithm.select": "everyone"}
    assert {name: found[name] for name in wanted} == wanted


def test_the_figures_configurations_are_understood(translated: Callable[..., dict[str, str]]) -> None:
    found = translated("--config-path", "conf/flickr/resnet", "--config-name", "fedper", "model.num_head_layers=2")
    assert (found["data"], found["model"], found["algorithm"]) == ("flickr_aes", "resnet34", "fedper")
    assert (found["rounds"], found["algorithm.batch"]) == ("35", "4")


def test_some_of_the_clients_a_round(translated: Callable[..., dict[str, str]]) -> None:
    found = translated("num_clients=20", "clients_per_round=5", "server_device=cpu", "client_resources.num_gpus=0.3")
    assert (found["data.users"], found["algorithm.select"], found["algorithm.cohort"]) == ("20", "uniform", "5")
    assert found["engine.device"] == "cpu"
    assert not any("resources" in name for name in found)


def test_a_run_is_continued_in_the_baselines_words(translated: Callable[..., dict[str, str]]) -> None:
    found = translated("resume=runs/mine", "num_rounds=60", "server_device=cpu")
    assert found == {"resume": "runs/mine", "rounds": "60", "engine.device": "cpu"}


def test_an_option_keeps_its_value(translated: Callable[..., dict[str, str]]) -> None:
    assert list(translated("algorithm=fedper", "--cfg", "job"))[:3] == ["--cfg", "job", "algorithm"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dataset.name=mnist"], "dataset.name is 'mnist': choose cifar10 or flickr"),
        (["model_name=vgg"], "model_name is 'vgg': choose mobile or resnet"),
        (["--config-name", "cifar100"], "there is no configuration 'cifar100'"),
        (["dataset.name=flickr", "num_clients=5"], "num_clients is of CIFAR-10"),
        (["num_clients=0"], "num_clients is 0: give at least 1 client"),
        (["--config-path"], "--config-path is the last word: say which after it"),
        (["dataset.fraction=0.5"], "dataset.fraction is 0.5"),
        ([], "there is no prepared data in data/cifar10: give --raw DIR .* manyeyes data prepare cifar10 .*--download"),
        (["dataset.name=flickr"], "there is no prepared data in data/flickr_aes: .* manyeyes data prepare flickr_aes"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(words: list[str], sentence: str, command: Any) -> None:
    found = command("fedper", *words)
    assert found.code == 1
    assert re.match(f"manyeyes: {sentence}", found.err), found.err
    assert found.err.count("\n") == 1


@pytest.fixture
def cifar(command: Any, tmp_path: Path) -> Path:
    assert command("data", "make", "cifar10", "--raw", "raw", "--users", "30", "--photos", "10").code == 0
    return tmp_path / "raw"


def test_a_sweep_with_repeats_on_a_stand_in_of_cifar(command: Any, cifar: Path, tmp_path: Path) -> None:
    words = [word for word in README if not word.startswith(("model_name", "dataset"))]
    tiny = ("model=lenet", "model.width=2", "dataset.num_classes=4,8", "+repeat_num=range(2)")
    found = command("fedper", "--raw", "raw", *words, *CIFAR, *tiny)
    assert (found.code, found.err) == (0, "")
    (sweep,) = (tmp_path / "runs").iterdir()
    kept = [yaml.safe_load((sweep / str(number) / "config.yaml").read_text()) for number in range(16)]
    told = {
        (c["data"]["classes_per_client"], c["algorithm"]["name"], c["algorithm"]["head_layers"], c["seed"])
        for c in kept
    }
    assert len(told) == 16
    for config, number in zip(kept, range(16), strict=True):
        assert (config["algorithm"]["personal"] == "head") == (config["algorithm"]["name"] == "fedper")
        last = read_events(sweep / str(number) / "metrics.jsonl")[-1]
        assert last["num_users_scored"] == 4
        assert (sweep / str(number) / "clients.bin").exists() == (config["algorithm"]["name"] == "fedper")
    assert found.out.count("user_mean") == 16


@pytest.mark.parametrize("model", ["resnet", "mobile"])
def test_both_models_on_a_stand_in_of_flickr_aes(command: Any, tmp_path: Path, model: str) -> None:
    assert (
        command("data", "make", "flickr_aes", "--raw", "raw", "--users", "8", "--photos", "100", "--size", "32").code
        == 0
    )
    words = ("prepare", "flickr_aes", "--raw", "raw", "--size", "32", "--workers", "2", "--least-per-score", "1")
    assert command("data", *words).code == 0
    words = ("dataset.name=flickr", f"model_name={model}", "algorithm=fedper", "model.num_head_layers=2")
    found = command("fedper", *words, *SMALL, "batch_size=32", "folder=here")
    assert (found.code, found.err) == (0, "")
    last = read_events(tmp_path / "here" / "metrics.jsonl")[-1]
    assert last["num_users_scored"] == 2
    assert (tmp_path / "here" / "per_user.csv").read_text().startswith("user,examples,accuracy\nworker0")


def test_the_module_is_the_command(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    out, _ = spawn("-m", "manyeyes.fedper", "--help").communicate(timeout=60)
    assert out.startswith("usage: manyeyes fedper")


def test_the_seed_decides_who_holds_what(command: Any, cifar: Path) -> None:
    for partition, out in (("iid", "one"), ("dirichlet", "other")):
        words = ("--raw", "raw", "--partition", partition, "--users", "5", "--out", out)
        assert command("data", "prepare", "cifar10", *words).code == 0
    one, other = open_population(Path("one")), open_population(Path("other"))

    def told(people: Any) -> list[tuple[str, str, str]]:
        owners = [people.name(user) for user in people.owners(np.arange(len(people)))]
        return sorted(zip(people.columns["image_id"].tolist(), owners, people.columns["split"].tolist(), strict=True))

    dealt = repartition(one, 6, 4, seed=3)
    assert told(dealt) == told(repartition(other, 6, 4, seed=3)) != told(repartition(one, 6, 4, seed=4))
    assert len(dealt) == len(one)
    assert ((dealt.histograms() > 0).sum(1) == 4).all()
    shares = [float((np.asarray(dealt.columns["split"])[dealt.examples(user)] == "test").mean()) for user in range(6)]
    assert shares == pytest.approx([0.17] * 6, abs=0.03)
    places = {name: place for place, name in enumerate(one.columns["image_id"])}
    for i in range(0, len(dealt), 40):
        place = places[dealt.columns["image_id"][i]]
        assert np.array_equal(dealt.pixels(np.array([i])), one.pixels(np.array([place])))
        assert dealt.labels.ids[i] == one.labels.ids[place]
