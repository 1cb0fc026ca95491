"""A run that was stopped anywhere continues as if it had not been, and another run does not continue it."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg, fedavgm
from manyeyes.components import Adam, MatchingLayers, Schedule, WeightUniformly
from manyeyes.core.population import Population, SingleLabels
from manyeyes.io import tensors as tensor_files
from manyeyes.io.files import atomic_write
from manyeyes.models import build_model
from manyeyes.training import checkpoint
from tests.damage import flip_bit
from tests.training.small_runs import CROPS, contents, events_without_times, kill_twice, run

CPU = torch.device("cpu")
RESULT_FILES = ("model.safetensors", "per_class.csv", "per_user.csv")
OPTIONS: dict[str, dict[str, Any]] = {
    "centralized": {"batch_size": 4},
    "fedvc": {"cohort_size": 3, "virtual_client_size": 6, "batch_size": 4},
    "fedper": {"head_layers": 1, "cohort_size": 3, "batch_size": 4},
}
TESTED_ELSEWHERE = ("fedbn", "finetuned")  # they need norms, and users with training and test examples
FAST_ALGORITHMS = ("centralized", "fedadam", "fedper", "scaffold", "warm-up")  # are tested without slow tests
SMALL_ALGORITHMS = {
    name: make(**OPTIONS.get(name, {"cohort_size": 3, "batch_size": 4}))
    for name, make in NAMED_ALGORITHMS.items()
    if name not in TESTED_ELSEWHERE
}
COMBINATIONS = {
    "fedavgm with a personal bias": replace(
        fedavgm(cohort_size=3, batch_size=4), personal_layers=MatchingLayers(("fc.bias",))
    ),
    "persistent Adam": replace(
        fedavg(cohort_size=3, batch_size=4),
        client_optimizer=Adam(0.01, persist_state=True),
        client_weighting=WeightUniformly(),
    ),
    "warm-up": fedavg(cohort_size=3, batch_size=4, momentum=0.9, schedule=Schedule("cosine", rounds=8, warmup=3)),
}


@pytest.mark.fast_cases("scaffold")
@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST_ALGORITHMS else pytest.param(name, marks=pytest.mark.slow)
        for name in [*SMALL_ALGORITHMS, *COMBINATIONS]
    ],
)
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path, population: Population, name: str) -> None:
    algorithm = {**SMALL_ALGORITHMS, **COMBINATIONS}[name]
    settings: dict[str, Any] = {"preprocess": CROPS, "engine": "reference" if name in FAST_ALGORITHMS else "auto"}
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    run(population, algorithm, uninterrupted, rounds=8, **settings)
    run(population, algorithm, resumed, rounds=4, **settings)
    run(population, algorithm, resumed, rounds=8, resume=True, **settings)
    assert_equal_results(resumed, uninterrupted)


def assert_equal_results(first: Path, second: Path) -> None:
    for file in RESULT_FILES:
        assert (first / file).read_bytes() == (second / file).read_bytes()
    assert events_without_times(first) == events_without_times(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("algorithm=scaffold", "model=lenet", "model.width=4"),
        ("algorithm=centralized", "preprocess.pad=2", "preprocess.flip_horizontal=true"),
    ],
    ids=lambda args: args[0],
)
def test_a_run_killed_at_random_moments_equals_one_that_was_never_stopped(
    tmp_path: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    until: Callable[..., None],
    command: Any,
    tiny: tuple[str, ...],
    args: tuple[str, ...],
) -> None:
    tiny = tuple(option for option in tiny if args[0] != "algorithm=centralized" or "cohort_size" not in option)
    options = (*tiny, *args)
    saved_round = kill_twice(tmp_path / "killed", options, spawn, until)
    assert command("run", "resume=killed", f"rounds={saved_round + 5}").code == 0
    assert command("run", *options, f"rounds={saved_round + 5}", "folder=uninterrupted").code == 0
    assert_equal_results(tmp_path / "killed", tmp_path / "uninterrupted")


def test_lines_after_the_checkpoint_and_an_incomplete_line_are_dropped(tmp_path: Path, population: Population) -> None:
    algorithm = SMALL_ALGORITHMS["fedavgm"]
    run(population, algorithm, tmp_path / "uninterrupted", rounds=8)
    run(population, algorithm, tmp_path / "resumed", rounds=4)
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "train_loss": 9.0}\n{"round": 6, "tra')
    run(population, algorithm, tmp_path / "resumed", rounds=8, resume=True)
    assert_equal_results(tmp_path / "resumed", tmp_path / "uninterrupted")


def test_a_finished_run_can_be_resumed_and_does_not_change(tmp_path: Path, population: Population) -> None:
    run(population, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    assert run(population, fedavg(cohort_size=3), tmp_path, resume=True).final
    assert contents(tmp_path) == before


def test_a_resumed_run_writes_its_new_settings(tmp_path: Path, population: Population) -> None:
    run(population, fedavg(cohort_size=3), tmp_path, metadata={"note": "first"})
    run(population, fedavg(cohort_size=3), tmp_path, rounds=6, metadata={"note": "second"}, resume=True)
    settings = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (settings["rounds"], settings["note"]) == (6, "second")


def with_reversed_labels(population: Population) -> Population:
    assert isinstance(population.labels, SingleLabels)
    return replace(population, labels=replace(population.labels, ids=population.labels.ids[::-1]))


DIFFERENT_RUNS: dict[str, Callable[[Population], dict[str, Any]]] = {
    "algorithm": lambda population: {"algorithm": fedavg(cohort_size=3, lr=0.02)},
    "seed": lambda population: {"seed": 1},
    "data": lambda population: {"population": population.filter(np.arange(48) != 3)},
    "labels": lambda population: {"population": with_reversed_labels(population)},
    "model": lambda population: {"model": build_model("lenet", 3, size=8, width=2)},
    "preprocess": lambda population: {"preprocess": CROPS},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT_RUNS)
def test_another_run_does_not_continue_this_one_and_changes_nothing(
    tmp_path: Path, population: Population, name: str
) -> None:
    run(population, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    settings = {"population": population, "algorithm": fedavg(cohort_size=3), **DIFFERENT_RUNS[name](population)}
    with pytest.raises(ValueError, match="is a run with other data, model, algorithm or seed: continue it with its"):
        run(**settings, folder=tmp_path, resume=True)
    assert contents(tmp_path) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def set_other_version(path: Path) -> None:
    save_file(load_file(path), path, {"manyeyes": json.dumps({"version": 0})})


@pytest.mark.parametrize(("damage", "message"), [(truncate, "or is damaged"), (set_other_version, "version 0")])
def test_a_bad_checkpoint_is_refused_and_nothing_changes(
    tmp_path: Path, population: Population, damage: Callable[[Path], None], message: str
) -> None:
    run(population, fedavg(cohort_size=3), tmp_path)
    damage(tmp_path / "checkpoint.safetensors")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        run(population, fedavg(cohort_size=3), tmp_path, rounds=8, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path: Path, population: Population) -> None:
    run(population, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="already has a run: continue it with resume="):
        run(population, fedavg(cohort_size=3), tmp_path)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_the_last_checkpoint_and_the_run_can_be_resumed(
    tmp_path: Path, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(population, fedavgm(cohort_size=3), tmp_path / "uninterrupted", rounds=8)
    saved_paths = []

    def fail_from_the_fourth_on(path: Path, data: bytes) -> None:
        saved_paths.append(path)
        if len(saved_paths) >= 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(
            tensor_files,
            "write_bytes",
            lambda path, data: atomic_write(path, partial(fail_from_the_fourth_on, data=data)),
        )
        with pytest.raises(OSError, match="No space left on device"):
            run(population, fedavgm(cohort_size=3), tmp_path / "full", rounds=8)
    assert checkpoint.load(tmp_path / "full" / "checkpoint.safetensors", CPU).state.round == 2
    assert not list((tmp_path / "full").glob("*.writing"))
    run(population, fedavgm(cohort_size=3), tmp_path / "full", rounds=8, resume=True)
    assert_equal_results(tmp_path / "full", tmp_path / "uninterrupted")


def test_a_changed_bit_of_the_metrics_is_refused_and_nothing_changes(tmp_path: Path, population: Population) -> None:
    run(population, fedavg(cohort_size=3), tmp_path)
    flip_bit(tmp_path / "metrics.jsonl", 8 * 100)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: it has changed since its checkpoint: restore it"):
        run(population, fedavg(cohort_size=3), tmp_path, rounds=8, resume=True)
    assert contents(tmp_path) == before
