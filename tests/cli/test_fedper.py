"""`python -m manyeyes.fedper`: the baseline's commands, on synthetic images that are prepared like the real ones."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from manyeyes.cli import fedper as fedper_command
from manyeyes.cli import run
from manyeyes.core.population import Population
from manyeyes.data.partition import ClassPartitioner, repartition
from manyeyes.data.store.reader import open_population
from manyeyes.training.run_folder import read_events

README_FILE = Path(__file__).resolve().parents[2] / "shared" / "seeds" / "fedper-baseline-readme.md"
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
UNCROPPED = ("preprocess.crop=0", "preprocess.scale=null")


@pytest.fixture
def translate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the settings that `manyeyes run` would get, if the data existed."""
    received: list[str] = []

    def receive(argv: list[str]) -> int:
        received.extend(argv)
        return 0

    monkeypatch.setattr(run, "main", receive)
    monkeypatch.setattr(fedper_command, "_prepare_data", lambda *args: None)

    def translate(*argv: str) -> dict[str, str]:
        received.clear()
        assert fedper_command.main(list(argv)) == 0
        return {name: value for name, _, value in (argument.partition("=") for argument in received)}

    return translate


def test_the_command_of_the_readme_is_a_sweep(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate(*[argument.replace("fedper,fedavg", "fedper") for argument in README])
    assert "--multirun" in settings
    expected = {
        "partitioner.classes_per_client": "4,8,10",
        "model": "resnet34,mobilenet_v1",
        "algorithm": "fedper",
        "algorithm.head_layers": "2,3",
        "seed": "range(5)",
        "data": "cifar10",
        "rounds": "50",
    }
    assert {name: settings[name] for name in expected} == expected


def test_every_command_of_the_readme_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    if not README_FILE.exists():
        pytest.skip(f"needs {README_FILE}, which is not part of the project")
    calls: list[list[str]] = []

    def receive(argv: list[str]) -> int:
        calls.append(argv)
        return 0

    monkeypatch.setattr(run, "main", receive)
    monkeypatch.setattr(fedper_command, "_prepare_data", lambda *args: None)
    commands = re.findall(r"python -m fedper\.main(.*)", README_FILE.read_text())
    assert len(commands) == 3
    assert [fedper_command.main(shlex.split(command, comments=True)) for command in commands] == [0, 0, 0]
    assert len(calls) == 1 + 2 + 2  # a sweep with FedPer is two: FedAvg has no number of head layers


def test_algorithms_without_a_head_are_a_sweep_without_its_number_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def receive(argv: list[str]) -> int:
        calls.append(argv)
        return 0

    monkeypatch.setattr(run, "main", receive)
    monkeypatch.setattr(fedper_command, "_prepare_data", lambda *args: None)
    assert fedper_command.main(README) == 0
    first, second = calls
    assert {"algorithm=fedper", "algorithm.head_layers=2,3"} <= set(first)
    assert "algorithm=fedavg" in second
    assert not any(argument.startswith("algorithm.head_layers") for argument in second)


def test_the_default_is_that_of_the_baseline(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate()
    expected = {"algorithm": "fedavg", "model": "mobilenet_v1", "algorithm.epochs": "4", "algorithm.batch_size": "128"}
    expected |= {"algorithm.lr": "0.01", "algorithm.momentum": "0.9", "partitioner.num_clients": "10", "sampler": "all"}
    assert {name: settings[name] for name in expected} == expected


def test_configuration_files_of_the_baseline_are_translated(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("--config-path", "conf/flickr/resnet", "--config-name", "fedper", "model.num_head_layers=2")
    assert (settings["data"], settings["model"], settings["algorithm"]) == ("flickr_aes", "resnet34", "fedper")
    assert (settings["rounds"], settings["algorithm.batch_size"]) == ("35", "4")


def test_clients_per_round_choose_a_sampler(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("num_clients=20", "clients_per_round=5", "server_device=cpu", "client_resources.num_gpus=0.3")
    expected = {
        "partitioner.num_clients": "20",
        "sampler": "uniform",
        "sampler.cohort_size": "5",
        "engine.device": "cpu",
    }
    assert {name: settings[name] for name in expected} == expected
    assert not any("resources" in name for name in settings)


def test_another_partitioner_replaces_that_of_the_baseline(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("partitioner=dirichlet", "partitioner.alpha=1")
    chosen = {name: value for name, value in settings.items() if name.startswith("partitioner")}
    assert chosen == {"partitioner": "dirichlet", "partitioner.alpha": "1"}


def test_a_resumed_run_gets_only_the_changes(translate: Callable[..., dict[str, str]]) -> None:
    settings = translate("resume=runs/mine", "num_rounds=60", "server_device=cpu")
    assert settings == {"resume": "runs/mine", "rounds": "60", "engine.device": "cpu"}


def test_a_flag_keeps_its_value(translate: Callable[..., dict[str, str]]) -> None:
    assert list(translate("algorithm=fedper", "--cfg", "job"))[:2] == ["--cfg", "job"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["dataset.name=mnist"], "dataset.name is 'mnist': choose cifar10 or flickr"),
        (["model_name=vgg"], "model_name is 'vgg': choose mobile or resnet"),
        (["--config-name", "cifar100"], "Unknown configuration 'cifar100'"),
        (["dataset.name=flickr", "num_clients=5"], "num_clients is for CIFAR-10"),
        (["--config-path"], "argument --config-path/--config_path: expected one argument"),
        (["--bogus"], "Unknown option --bogus"),
        (["dataset.fraction=0.5"], "dataset.fraction is 0.5"),
        ([], "No prepared dataset at data/cifar10: give --raw DIR .* manyeyes data prepare cifar10 .*--download"),
        (["dataset.name=flickr"], "No prepared dataset at data/flickr_aes: .* manyeyes data prepare flickr_aes"),
    ],
)
def test_a_mistake_is_one_sentence(argv: list[str], sentence: str, command: Any) -> None:
    outcome = command("fedper", *argv)
    assert outcome.code == 2
    assert re.match(f"manyeyes: {sentence}", outcome.err), outcome.err
    assert outcome.err.count("\n") == 1


@pytest.fixture
def cifar(command: Any, tmp_path: Path) -> Path:
    """Synthetic images in the format of CIFAR-10."""
    options = ("--raw", "raw", "--users", "30", "--images-per-user", "10")
    assert command("data", "synthesize", "cifar10", *options).code == 0
    return tmp_path / "raw"


def test_no_clients_are_refused(command: Any, cifar: Path) -> None:
    outcome = command("fedper", "--raw", "raw", *SMALL, *UNCROPPED, "model=lenet", "num_clients=0")
    assert outcome.code == 2
    assert outcome.err == "manyeyes: partitioner.num_clients is 0: set it to a whole number of at least 1\n"


@pytest.mark.slow
def test_a_sweep_with_repeats_on_synthetic_images(command: Any, cifar: Path, tmp_path: Path) -> None:
    readme = [argument for argument in README if not argument.startswith(("model_name", "dataset", "+repeat"))]
    tiny = ("model=lenet", "model.width=2", "num_clients=4", "clients_per_round=4", *UNCROPPED)
    outcome = command(
        "fedper", "--raw", "raw", *readme, *SMALL, *tiny, "dataset.num_classes=4,8", "+repeat_num=range(2)"
    )
    assert (outcome.code, outcome.err) == (0, "")
    runs = sorted((tmp_path / "runs").glob("*/*/config.yaml"))
    configs = [yaml.safe_load(path.read_text()) for path in runs]
    assert len(configs) == 8 + 4  # FedPer with two heads; FedAvg
    distinct = {
        (
            config["partitioner"]["classes_per_client"],
            config["algorithm"]["name"],
            config["algorithm"].get("head_layers"),
            config["seed"],
        )
        for config in configs
    }
    assert len(distinct) == 12
    for path, config in zip(runs, configs, strict=True):
        is_fedper = config["algorithm"]["name"] == "fedper"
        assert (config["personal_layers"] is not None) == is_fedper
        assert read_events(path.with_name("metrics.jsonl"))[-1]["num_users_scored"] == 4
        assert path.with_name("clients.bin").exists() == is_fedper
    assert outcome.out.count("user_mean") == 12


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet", "mobile"])
def test_both_models_on_synthetic_images_in_the_format_of_flickr_aes(command: Any, tmp_path: Path, model: str) -> None:
    options = ("--raw", "raw", "--users", "8", "--images-per-user", "100", "--size", "32")
    assert command("data", "synthesize", "flickr_aes", *options).code == 0
    raters = ("--raters", "2", "--min-per-score", "1")
    assert command("data", "prepare", "flickr_aes", "--raw", "raw", "--size", "32", *raters).code == 0
    settings = ("dataset.name=flickr", f"model_name={model}", "algorithm=fedper", "model.num_head_layers=2")
    outcome = command("fedper", *settings, *SMALL, "batch_size=32", "folder=run")
    assert (outcome.code, outcome.err) == (0, "")
    last = read_events(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["num_users_scored"] == 2
    assert (tmp_path / "run" / "per_user.csv").read_text().startswith("user,examples,accuracy\nworker0")


@pytest.mark.parametrize("module", ["manyeyes.fedper", "manyeyes.fedper.main"])
def test_the_module_is_the_command(spawn: Callable[..., subprocess.Popen[str]], module: str) -> None:
    out, _ = spawn("-m", module, "--help").communicate(timeout=60)
    assert out.startswith("usage: manyeyes fedper")


@pytest.mark.slow
def test_a_partition_depends_on_the_seed_and_not_on_the_users_of_the_dataset(command: Any, cifar: Path) -> None:
    for partition in ("iid", "dirichlet"):
        options = ("--raw", "raw", "--partition", partition, "--users", "5", "--out", partition)
        assert command("data", "prepare", "cifar10", *options).code == 0
    first, second = open_population(Path("iid")), open_population(Path("dirichlet"))
    partitioner = ClassPartitioner(6, 4)

    def owners(population: Population) -> list[tuple[str, str, str]]:
        users = [population.user_name(user) for user in population.owners(np.arange(len(population)))]
        return sorted(zip(_column(population, "image_id"), users, _column(population, "split"), strict=True))

    population = repartition(first, partitioner, seed=3)
    assert owners(population) == owners(repartition(second, partitioner, seed=3))
    assert owners(population) != owners(repartition(second, partitioner, seed=4))
    assert len(population) == len(first)
    assert ((population.histograms() > 0).sum(1) == 4).all()
    splits = np.array(_column(population, "split"))
    test_fractions = [float((splits[population.examples(user)] == "test").mean()) for user in range(6)]
    assert test_fractions == pytest.approx([0.17] * 6, abs=0.03)
    rows = {name: row for row, name in enumerate(_column(first, "image_id"))}
    for row, name in list(enumerate(_column(population, "image_id")))[::40]:
        assert np.array_equal(population.pixels(np.array([row])), first.pixels(np.array([rows[name]])))
        assert population.labels.targets(np.array([row])) == first.labels.targets(np.array([rows[name]]))


def _column(population: Population, name: str) -> list[str]:
    return [str(value) for value in np.asarray(population.columns[name])]
