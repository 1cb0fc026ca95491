"""`manyeyes run`: from words to a run in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from manyeyes.config.schema import WorldConfig

from manyeyes.config.errors import setting_names
from tests.training.small_runs import events_without_times


def leaves(node: Any, prefix: str = "") -> set[str]:
    """The full name of everything in nested settings."""
    found = set()
    for name, value in node.items():
        found |= {prefix + name} | (leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else set())
    return found


def test_cfg_shows_every_setting_and_trains_nothing(tmp_path: Path, command: Any) -> None:
    found = command("run", "algorithm=fedvc", "rounds=7", "--cfg", "job")
    shown = yaml.safe_load(found.out)
    assert (found.code, found.err) == (0, "")
    assert leaves(shown) == set(setting_names(data=[WorldConfig]))
    assert (shown["rounds"], shown["algorithm"]["name"], shown["algorithm"]["examples"]) == (7, "fedvc", 256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_wins_over_everything(command: Any, flag: str) -> None:
    found = command("run", "nonsense", flag)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("usage: manyeyes run")


def test_a_run_keeps_its_settings(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    assert command("run", *tiny, "rounds=2", "algorithm=fedprox", "algorithm.mu=0.5", "folder=here").code == 0
    kept = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    assert leaves(kept) == set(setting_names(data=[WorldConfig]))
    assert (kept["rounds"], kept["algorithm"]["mu"], kept["algorithm"]["batch"]) == (2, 0.5, 6)


def test_a_run_without_a_folder_gets_one_by_time_and_algorithm(
    tmp_path: Path, command: Any, tiny: tuple[str, ...]
) -> None:
    found = command("run", *tiny, "rounds=1", "algorithm=fedavgm")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("_fedavgm")
    assert found.out.startswith(f"runs/{folder.name}: accuracy ")


def test_a_folder_that_holds_a_run_is_refused(command: Any, tiny: tuple[str, ...]) -> None:
    assert command("run", *tiny, "rounds=1", "folder=here").code == 0
    found = command("run", *tiny, "rounds=1", "folder=here")
    expected = "manyeyes: here already holds a run: continue it with resume=here, or choose another folder\n"
    assert (found.code, found.err) == (1, expected)


def test_a_sweep_runs_every_combination(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    found = command("run", "--multirun", *tiny, "rounds=1", "algorithm=fedavg,fedprox", "seed=0,1")
    assert (found.code, found.err) == (0, "")
    (sweep,) = (tmp_path / "runs").iterdir()
    kept = [yaml.safe_load((sweep / str(number) / "config.yaml").read_text()) for number in range(4)]
    pairs = [(one["algorithm"]["name"], one["seed"]) for one in kept]
    assert pairs == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)]
    assert found.out.count("accuracy 0.") == 4 * 2  # accuracy and macro_accuracy


@pytest.mark.parametrize("order", [("-m", "seed=0,1"), ("seed=0,1", "--multirun", "rounds=1")])
def test_options_may_stand_anywhere(command: Any, tiny: tuple[str, ...], order: tuple[str, ...]) -> None:
    found = command("run", *tiny, "data.images_per_user=2", "rounds=1", *order)
    assert (found.code, found.out.count("\n")) == (0, 2)


def test_a_run_that_fails_is_reported_and_does_not_stop_the_sweep(
    tmp_path: Path, command: Any, tiny: tuple[str, ...]
) -> None:
    found = command("run", "--multirun", *tiny, "rounds=1", "algorithm.lr=0.1,-1,-2,0.2")
    (sweep,) = (tmp_path / "runs").iterdir()
    assert [(sweep / str(number) / "model.safetensors").exists() for number in range(4)] == [True, False, False, True]
    lines = [f"manyeyes: run {run}: lr is {lr}: it must be a number above 0\n" for run, lr in ((1, -1.0), (2, -2.0))]
    assert (found.code, found.err) == (1, "".join(lines))


def test_divergence_ends_with_a_sentence_and_code_1(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    found = command("run", *tiny, "algorithm.lr=1e38", "folder=here")
    assert found.code == 1
    assert found.err.startswith("manyeyes: the run has diverged (its last good checkpoint is in here)")
    assert found.err.count("\n") == 1
    assert (tmp_path / "here" / "checkpoint.safetensors").exists()


def test_more_rounds_by_resume_equal_a_straight_run(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    for words in (
        (*tiny, "algorithm=fedyogi", "rounds=5", "folder=parts"),
        ("resume=parts", "rounds=10"),
        (*tiny, "algorithm=fedyogi", "rounds=10", "folder=straight"),
    ):
        assert command("run", *words).code == 0
    parts, straight = tmp_path / "parts", tmp_path / "straight"
    assert (parts / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
    assert events_without_times(parts) == events_without_times(straight)
    assert yaml.safe_load((parts / "config.yaml").read_text())["rounds"] == 10


def test_what_may_change_in_a_continued_run_changes(tmp_path: Path, command: Any, tiny: tuple[str, ...]) -> None:
    assert command("run", *tiny, "rounds=2", "folder=here").code == 0
    words = ("rounds=4", "evaluate_every=1", "checkpoint_seconds=9", "engine=reference", "track=tensorboard")
    assert command("run", "resume=here", *words, "client_memory=0").code == 0
    kept = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    assert (kept["rounds"], kept["evaluate_every"], kept["engine"]["name"]) == (4, 1, "reference")
    assert list((tmp_path / "here" / "tensorboard").iterdir())


def test_damaged_settings_are_named_when_a_run_is_continued(tmp_path: Path, command: Any) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.yaml").write_text("rounds: [2\nseed: {")
    found = command("run", "resume=here")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert found.err.startswith("manyeyes: here/config.yaml is damaged (")


@pytest.mark.parametrize(
    "word", ["seed=1", "algorithm=fedavgm", "algorithm.lr=0.5", "data.users=50", "model=lenet", "folder=there"]
)
def test_what_may_not_change_in_a_continued_run_is_refused(
    tmp_path: Path, command: Any, tiny: tuple[str, ...], word: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.yaml").write_text("rounds: 2\n")
    found = command("run", "resume=here", word)
    name = word.partition("=")[0]
    assert found.code == 1
    assert found.err.startswith(f"manyeyes: {name} cannot change in a continued run: only rounds, ")
    assert found.err.count("\n") == 1
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["config.yaml"]
