"""`manyeyes run`: from arguments to a run in its folder."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import manyeyes as me
from manyeyes.config.groups import GROUPS, preprocess_options, run_options
from manyeyes.core.registry import import_object
from tests.training.small_runs import equal_tensors, events_without_times

OWN_COMPONENTS = '''
import numpy as np
import torch
from torch import nn
import manyeyes as me


class Server:
    """Neither a dataclass nor with a repr."""

    def __init__(self, alpha: float = 1.0):
        self._step_size = alpha

    def init(self, theta):
        return {"mean": torch.zeros_like(theta)}

    def step(self, theta, update, state, round):
        mean = (state["mean"] + update) / 2
        return theta - self._step_size * mean, {"mean": mean}


class FirstUsers:
    def __init__(self, count: int = 3):
        self.count = count

    def sample(self, population, rng):
        return np.arange(self.count)


def network(classes, size, hidden: int = 4):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def images(users: int = 10, seed: int = 0):
    rng = np.random.default_rng(seed)
    split = np.where(np.arange(6 * users) % 3 == 0, "test", "train")
    pixels = rng.integers(0, 256, (6 * users, 8, 8, 3), np.uint8)
    labels = me.SingleLabels(rng.integers(0, 2, 6 * users), ("cat", "dog"))
    return me.Population.from_arrays(pixels, labels, np.repeat(np.arange(users), 6), split=split)


class HalfLoss:
    def __init__(self, factor: float = 0.5):
        self.factor = factor

    def __call__(self, outputs, targets):
        return self.factor * nn.functional.cross_entropy(outputs, targets, reduction="none")


class Printer:
    def __init__(self, text: str = "round"):
        self.text = text

    def on_round_end(self, run, event):
        print(self.text, event["round"])


class EveryThird:
    def __init__(self, offset: int = 0):
        self.offset = offset

    def __call__(self, labels, seed):
        return (np.arange(len(labels)) + self.offset) % 3
'''
ALIASES = ("  l0: &l0 [x, x]\n", *(f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10)))
OWN_SETTINGS = (
    *("data=mine:images", "data.users=12", "model=mine:network", "model.hidden=5", "server_optimizer=mine:Server"),
    *("server_optimizer.alpha=0.25", "sampler=mine:FirstUsers", "sampler.count=2", "loss=mine:HalfLoss"),
    *("loss.factor=0.75", "callbacks=[mine:Printer]", "callbacks.Printer.text=done", "engine.threads=1"),
)


@pytest.fixture
def own_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a user's own components in the working directory."""
    path = tmp_path / "mine.py"
    path.write_text(OWN_COMPONENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return path


def leaves(node: Any, prefix: str = "") -> set[str]:
    """Return the full name of everything in nested settings."""
    names = set()
    for name, value in node.items():
        names |= {prefix + name} | (leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else set())
    return names


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return config


def test_cfg_shows_every_setting_and_trains_nothing(tmp_path: Path, command: Any) -> None:
    outcome = command("run", "algorithm=fedvc", "rounds=7", "--cfg", "job")
    shown = yaml.safe_load(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert shown.keys() == {option.name for option in run_options()} | {"preprocess", *GROUPS}
    assert shown["preprocess"].keys() == {option.name for option in preprocess_options()}
    assert shown["rounds"] == 7
    assert (shown["algorithm"]["name"], shown["algorithm"]["virtual_client_size"]) == ("fedvc", 256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_takes_precedence_over_everything(command: Any, flag: str) -> None:
    outcome = command("run", "nonsense", flag)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: manyeyes run")


@pytest.mark.slow
def test_a_run_folder_has_the_settings(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    settings = ("algorithm=fedprox", "algorithm.mu=0.5", "server_optimizer=adam", "server_optimizer.lr=0.05")
    assert command("run", *tiny, "rounds=2", *settings, "folder=run").code == 0
    config = read_config(tmp_path / "run")
    assert (config["rounds"], config["algorithm"]["mu"], config["algorithm"]["batch_size"]) == (2, 0.5, 6)
    assert config["server_optimizer"]["lr"] == 0.05
    assert config["correction"] == {"name": "proximal", "mu": 0.5}  # of the algorithm, described in full
    assert config["sources"] == {}


@pytest.mark.slow
def test_a_run_without_a_folder_has_one_by_time_and_algorithm(
    tmp_path: Path, command: Any, tiny: tuple[str, ...]
) -> None:
    outcome = command("run", *tiny, "rounds=1", "algorithm=fedavgm")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("_fedavgm")
    assert outcome.out.startswith(f"runs/{folder.name}: accuracy ")


@pytest.mark.slow
def test_a_folder_that_has_a_run_is_refused(command: Any, tiny: tuple[str, ...]) -> None:
    assert command("run", *tiny, "rounds=1", "folder=run").code == 0
    outcome = command("run", *tiny, "rounds=1", "folder=run")
    fix = "continue it with resume=run (in Python: resume=True), or choose another folder"
    assert (outcome.code, outcome.err) == (2, f"manyeyes: run already has a run: {fix}.\n")


def test_of_a_setting_that_is_given_twice_the_last_value_counts_and_a_line_says_so(command: Any) -> None:
    outcome = command("run", "rounds=3", "seed=1", "seed=1", "rounds=1", "--cfg", "job")
    assert yaml.safe_load(outcome.out)["rounds"] == 1
    assert outcome.err == "rounds is given twice: rounds=1 counts, not rounds=3.\n"


def test_a_run_inside_the_folder_of_another_is_refused(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "checkpoint.safetensors").touch()
    outcome = command("run", *tiny, "rounds=1", "folder=outer/inner")
    sentence = f"outer/inner is inside the run folder {tmp_path}/outer: choose a folder next to it, such as"
    assert (outcome.code, outcome.err) == (2, f"manyeyes: {sentence} {tmp_path}/outer_inner.\n")
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["checkpoint.safetensors"]


@pytest.mark.slow
def test_a_sweep_runs_every_combination(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    outcome = command("run", "--multirun", *tiny, "rounds=1", "algorithm=fedavg,fedprox", "seed=0,1")
    assert (outcome.code, outcome.err) == (0, "")
    (sweep,) = (tmp_path / "runs").iterdir()
    configs = [read_config(sweep / str(number)) for number in range(4)]
    pairs = [(config["algorithm"]["name"], config["seed"]) for config in configs]
    assert pairs == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)]
    assert outcome.out.count("accuracy 0.") == 4 * 2  # accuracy and macro_accuracy
    *lines, last = outcome.out.splitlines()
    starts = [f"runs/{sweep.name}/{n} algorithm={name} seed={seed}: " for n, (name, seed) in enumerate(pairs)]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert last == f"Report of the sweep: manyeyes report runs/{sweep.name}"


@pytest.mark.slow
@pytest.mark.parametrize("order", [("-m", "seed=0,1"), ("seed=0,1", "--multirun", "rounds=1")])
def test_flags_can_be_anywhere(command: Any, tiny: tuple[str, ...], order: tuple[str, ...]) -> None:
    outcome = command("run", *tiny, "data.images_per_user=2", "rounds=1", *order)
    assert (outcome.code, outcome.out.count("accuracy 0.")) == (0, 2 * 2)  # of two runs


@pytest.mark.slow
def test_a_failed_run_is_reported_and_does_not_stop_the_sweep(
    tmp_path: Path, command: Any, tiny: tuple[str, ...]
) -> None:
    outcome = command("run", "--multirun", *tiny, "rounds=1", "algorithm.lr=0.1,-1,-2,0.2")
    (sweep,) = (tmp_path / "runs").iterdir()
    assert [(sweep / str(number) / "model.safetensors").exists() for number in range(4)] == [True, False, False, True]
    reasons = [(1, -1.0), (2, -2.0)]
    lines = [f"manyeyes: run {run}: algorithm.lr is {lr}: set it to a number above 0\n" for run, lr in reasons]
    assert (outcome.code, outcome.err) == (1, "".join(lines))


@pytest.mark.slow
def test_divergence_ends_with_a_sentence_and_code_1(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    outcome = command("run", *tiny, "algorithm.lr=1e38", "folder=run")
    assert outcome.code == 1
    assert outcome.err.startswith("manyeyes: ")
    assert "diverged" in outcome.err
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_more_rounds_after_resuming_equal_an_uninterrupted_run(
    tmp_path: Path, command: Any, tiny: tuple[str, ...]
) -> None:
    for arguments in (
        (*tiny, "algorithm=fedyogi", "rounds=5", "folder=resumed"),
        ("resume=resumed", "rounds=10"),
        (*tiny, "algorithm=fedyogi", "rounds=10", "folder=straight"),
    ):
        assert command("run", *arguments).code == 0
    resumed, straight = tmp_path / "resumed", tmp_path / "straight"
    assert (resumed / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
    assert events_without_times(resumed) == events_without_times(straight)
    assert read_config(resumed) == read_config(straight)


@pytest.mark.slow
def test_a_resumed_run_takes_the_settings_that_may_change(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    assert command("run", *tiny, "rounds=2", "folder=run").code == 0
    changes = ("rounds=4", "evaluate_every=1", "checkpoint_seconds=9", "engine=reference", "trackers=[tensorboard]")
    assert command("run", "resume=run", *changes, "client_state_cache_mib=0").code == 0
    config = read_config(tmp_path / "run")
    assert (config["rounds"], config["evaluate_every"], config["engine"]["name"]) == (4, 1, "reference")
    assert config["engine"]["threads"] == 1
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("content", ["rounds: [2\nseed: {", "- 1\n"])
def test_damaged_settings_of_a_resumed_run_are_named(tmp_path: Path, command: Any, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(content)
    outcome = command("run", "resume=run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("manyeyes: run")
    assert "damaged" in outcome.err


@pytest.mark.parametrize("argv", [("run", "resume=run"), ("report", "run"), ("users", "run")])
def test_a_run_of_an_earlier_version_is_refused_and_not_changed(
    tmp_path: Path, command: Any, argv: tuple[str, ...]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "population.json").write_text("{}")
    (tmp_path / "run" / "config.yaml").write_text("rounds: 2\nalgorithm: {name: fedavg, cohort: 3}\n")
    outcome = command(*argv)
    expected = "manyeyes: run is a run of an earlier version of manyeyes: train it again with this one.\n"
    assert (outcome.code, outcome.out, outcome.err) == (2, "", expected)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "population.json"]


@pytest.mark.fast_cases("seed=1", "data.users=50", "algorithm.lr=0.5", "server_optimizer.alpha=3")
@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "algorithm=fedavgm",
        "algorithm.lr=0.5",
        "data.users=50",
        "model=lenet",
        "folder=other",
        "server_optimizer.alpha=3",
        "preprocess.crop=3",
        "partitioner=iid",
    ],
)
def test_a_setting_that_cannot_change_in_a_resumed_run_is_refused(tmp_path: Path, command: Any, override: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{rounds: 2, data: {name: store}, sources: {}}\n")
    outcome = command("run", "resume=run", override)
    name = override.partition("=")[0]
    assert outcome.code == 2
    assert outcome.err.startswith(f"manyeyes: {name} cannot change in a resumed run: only rounds, ")
    assert outcome.err.count("\n") == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "changed", "sentence"),
    [
        ("max_local_batches: 0\n", "", "run/config.yaml has no `max_local_batches`: restore the file"),
        (
            "rounds: 2\n",
            "rounds: 2\nruonds: 5\n",
            "run/config.yaml has an unknown setting `ruonds` (did you mean 'rounds'?)",
        ),
        ("trackers: []\n", "trackers: 5\n", "run/config.yaml has trackers=5 in place of options"),
        ("  threads: 1\n", "  threads: 1\n  thread: 2\n", "engine.thread is not an option of"),
        ("rounds: 2\n", "rounds: 2\nbombs:\n" + "".join(ALIASES), "its aliases repeat too many values"),
    ],
)
def test_settings_of_a_run_that_are_missing_or_unknown_are_named(
    tmp_path: Path, command: Any, tiny: tuple[str, ...], line: str, changed: str, sentence: str
) -> None:
    few = ("data.users=10", "data.images_per_user=2", "data.split=per_user", "rounds=2", "evaluate_every=0")
    assert command("run", *tiny, *few, "folder=run").code == 0
    config = tmp_path / "run" / "config.yaml"
    assert line in config.read_text()
    config.write_text(config.read_text().replace(line, changed))
    (tmp_path / "run" / "checksums.json").unlink()
    outcome = command("run", "resume=run", "rounds=3")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert sentence in outcome.err


def test_a_cohort_larger_than_the_population_is_refused_before_data_are_built(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyeyes.config.build.build_population", pytest.fail)
    outcome = command("run", "data.users=60", "algorithm.cohort_size=5000")
    assert "cohort_size=5000 is more than the 60 users of the data" in outcome.err


@pytest.mark.slow
def test_a_users_own_components_are_recorded_and_resumed(tmp_path: Path, command: Any, own_components: Path) -> None:
    outcome = command("run", *OWN_SETTINGS, "rounds=2", "folder=run")
    assert (outcome.code, outcome.err) == (0, "")
    assert "done 1\ndone 2\n" in outcome.out
    config = read_config(tmp_path / "run")
    assert config["server_optimizer"] == {"name": "mine:Server", "alpha": 0.25}
    assert config["callbacks"] == [{"name": "mine:Printer", "text": "done"}]
    names = ("FirstUsers", "HalfLoss", "Printer", "Server", "images", "network")
    assert list(config["sources"]) == [f"mine:{name}" for name in names]
    assert command("run", *OWN_SETTINGS, "rounds=4", "folder=straight").code == 0
    resumed = command("run", "resume=run", "rounds=4").out
    assert "done 3\ndone 4\n" in resumed
    assert "done 2\n" not in resumed
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "straight")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_changed_source_is_named_when_the_run_is_resumed(tmp_path: Path, command: Any, own_components: Path) -> None:
    assert command("run", *OWN_SETTINGS, "rounds=1", "folder=run").code == 0
    own_components.write_text(OWN_COMPONENTS + "\n# changed\n")
    outcome = command("run", "resume=run", "rounds=2")
    assert outcome.code == 0
    assert "The source of mine:Server has changed since the run began: results may differ." in outcome.err


@pytest.mark.slow
def test_a_users_own_partitioner_gives_the_examples_to_clients(
    tmp_path: Path, command: Any, own_components: Path
) -> None:
    settings = ("data=mine:images", "model=linear", "partitioner=mine:EveryThird", "partitioner.offset=1")
    assert command("run", *settings, "sampler=all", "rounds=1", "engine.threads=1", "folder=run").code == 0
    assert read_config(tmp_path / "run")["partitioner"] == {"name": "mine:EveryThird", "offset": 1}
    assert events_without_times(tmp_path / "run")[-1]["num_clients"] == 3


@pytest.mark.slow
def test_a_run_that_began_in_python_continues_on_the_command_line(
    tmp_path: Path, command: Any, own_components: Path
) -> None:
    """Of its data, and of an option that a plain class does not keep under its name, the folder has no record."""
    images, network, server, loss = (
        import_object(f"mine:{name}") for name in ("images", "network", "Server", "HalfLoss")
    )
    algorithm = replace(me.fedavg(cohort_size=3), server_optimizer=server(alpha=0.5), loss=loss(0.75))
    for rounds, folder in ((2, "run"), (4, "straight")):
        torch.manual_seed(0)
        me.train(images(12), network(2, 8), algorithm, rounds=rounds, folder=folder, progress=False)
    shutil.copytree("run", "copy")
    data, model = ("data=mine:images", "data.users=12"), ("model=mine:network",)
    outcome = command("run", "resume=run", "rounds=4")
    assert outcome.err.startswith(
        "manyeyes: run was started in Python, and does not record how its data was made: add data="
    )
    outcome = command("run", "resume=run", "rounds=4", *data, *model)
    assert "does not record how its server_optimizer was made: add server_optimizer=" in outcome.err
    own = ("server_optimizer=mine:Server", "server_optimizer.alpha=0.5")
    assert command("run", "resume=run", "rounds=4", *data, *model, *own).code == 0
    resumed, straight = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "straight"))
    assert equal_tensors(resumed, straight)
    outcome = command("run", "resume=copy", "rounds=4", *data, *model, own[0], "server_optimizer.alpha=0.25")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


@pytest.mark.fast_cases("overrides0", "overrides1")
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("server_optimizer=mine:Servr",), "mine has no 'Servr' (did you mean 'Server'?)"),
        (("server_optimizer=mine:Server", "server_optimizer.alpah=3"), "(did you mean 'server_optimizer.alpha'?)"),
        (("server_optimizer=missing:Server",), "cannot import missing"),
        (("server_optimizer=mine:Server", "server_optimizer.alpha=big"), "server_optimizer.alpha is 'big'"),
    ],
)
def test_a_mistake_about_a_users_own_component_is_one_sentence(
    command: Any, own_components: Path, overrides: tuple[str, ...], sentence: str
) -> None:
    outcome = command("run", *overrides)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert sentence in outcome.err


def test_help_of_a_users_own_component_lists_its_options(command: Any, own_components: Path) -> None:
    outcome = command("run", "server_optimizer=mine:Server", "--help")
    assert outcome.out.startswith("server_optimizer=mine:Server: Neither a dataclass nor with a repr.\n")
    assert "server_optimizer.alpha=1.0" in outcome.out
