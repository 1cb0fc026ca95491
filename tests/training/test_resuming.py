"""A run stopped anywhere goes on as if it had not, and no other goes on in its place."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg, fedavgm
from manyeyes.components import Adam, MatchingLayers, Schedule, WeightUniformly
from manyeyes.core.population import Population, SingleLabels
from manyeyes.models import build_model
from manyeyes.training import checkpoint, tensors
from tests.training.small_runs import CROPS, contents, run, timeless

SMALL: dict[str, dict[str, Any]] = {
    "centralised": {"batch": 4},
    "fedvc": {"cohort": 3, "examples": 6, "batch": 4},
    "fedper": {"layers": 1, "cohort": 3, "batch": 4},
}
OF_OTHERS = ("fedbn", "finetuned")  # which want norms, and users with a part to be tested on
NAMED_SMALL = {
    name: make(**SMALL.get(name, {"cohort": 3, "batch": 4}))
    for name, make in NAMED_ALGORITHMS.items()
    if name not in OF_OTHERS
}
MIXES = {
    "fedper": replace(fedavgm(cohort_size=3, batch_size=4), personal_layers=MatchingLayers(("fc.bias",))),
    "kept_adam": replace(
        fedavg(cohort_size=3, batch_size=4),
        client_optimizer=Adam(0.01, persist_state=True),
        client_weighting=WeightUniformly(),
    ),
    "warm_up": fedavg(cohort_size=3, batch_size=4, momentum=0.9, schedule=Schedule("cosine", rounds=8, warmup=3)),
}


@pytest.mark.parametrize("name", [*NAMED_SMALL, *MIXES])
def test_a_continued_run_equals_one_that_was_never_stopped(tmp_path: Path, people: Population, name: str) -> None:
    algorithm = {**NAMED_SMALL, **MIXES}[name]
    run(people, algorithm, tmp_path / "straight", rounds=8, augment=CROPS)
    run(people, algorithm, tmp_path / "parts", rounds=4, augment=CROPS)
    run(people, algorithm, tmp_path / "parts", rounds=8, augment=CROPS, resume=True)
    straight, parts = contents(tmp_path / "straight"), contents(tmp_path / "parts")
    for file in ("model.safetensors", "per_class.csv", "per_user.csv"):
        assert parts[file] == straight[file]
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "straight")


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=scaffold", "model=lenet", "model.width=4"),
        ("algorithm=centralized", "augment.pad=2", "augment.flip_horizontal=true"),
    ],
    ids=lambda words: words[0],
)
def test_a_run_killed_at_random_moments_equals_one_that_was_never_stopped(
    tmp_path: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    until: Callable[..., None],
    command: Any,
    tiny: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    metrics, chance = tmp_path / "killed" / "metrics.jsonl", random.Random(words[0])
    start: tuple[str, ...] = (*tiny, *words, "rounds=1000000", "folder=killed")
    played = 0
    for _ in range(2):
        process = spawn("-m", "manyeyes", "run", *start)
        goal = played + chance.randint(2, 12)
        until(lambda goal=goal: metrics.exists() and metrics.read_bytes().count(b"\n") > goal)
        time.sleep(chance.uniform(0, 0.02))  # anywhere in a round, or while the checkpoint is written
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        played = checkpoint.load(tmp_path / "killed" / "checkpoint.safetensors", torch.device("cpu")).state.round
        start = ("resume=killed",)
    assert command("run", "resume=killed", f"rounds={played + 5}").code == 0
    assert command("run", *tiny, *words, f"rounds={played + 5}", "folder=straight").code == 0
    for file in ("model.safetensors", "per_class.csv", "per_user.csv"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "straight")


def test_lines_beyond_the_checkpoint_and_a_cut_line_are_dropped(tmp_path: Path, people: Population) -> None:
    algorithm = NAMED_SMALL["fedavgm"]
    run(people, algorithm, tmp_path / "straight", rounds=8)
    run(people, algorithm, tmp_path / "cut", rounds=4)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "train_loss": 9.0}\n{"round": 6, "tra')
    run(people, algorithm, tmp_path / "cut", rounds=8, resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "straight")


def test_a_finished_run_can_be_continued_and_stays_as_it_is(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    assert run(people, fedavg(cohort_size=3), tmp_path, resume=True).final
    assert contents(tmp_path) == before


def test_a_continued_run_writes_down_its_new_settings(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort_size=3), tmp_path, about={"rounds": 4})
    run(people, fedavg(cohort_size=3), tmp_path, rounds=6, about={"rounds": 6}, resume=True)
    assert (tmp_path / "config.yaml").read_text() == "rounds: 6\n"


def labelled_backwards(people: Population) -> Population:
    assert isinstance(people.labels, SingleLabels)
    return replace(people, labels=replace(people.labels, ids=people.labels.ids[::-1]))


OTHERS: dict[str, Callable[[Population], dict[str, Any]]] = {
    "algorithm": lambda people: {"algorithm": fedavg(cohort_size=3, lr=0.02)},
    "seed": lambda people: {"seed": 1},
    "data": lambda people: {"people": people.filter(np.arange(48) != 3)},
    "labels": lambda people: {"people": labelled_backwards(people)},
    "model": lambda people: {"model": build_model("lenet", 3, size=8, width=2)},
    "augment": lambda people: {"augment": CROPS},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_run_does_not_continue_this_one_and_changes_nothing(
    tmp_path: Path, people: Population, other: str
) -> None:
    run(people, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="is a run of other data, model, algorithm or seed: continue it with its own"):
        run(
            **{"people": people, "algorithm": fedavg(cohort_size=3), **OTHERS[other](people)},
            folder=tmp_path,
            resume=True,
        )
    assert contents(tmp_path) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def of_another_version(path: Path) -> None:
    save_file(load_file(path), path, {"manyeyes": json.dumps({"version": 0})})


@pytest.mark.parametrize(("spoil", "sentence"), [(cut, "or is damaged"), (of_another_version, "version 0")])
def test_a_bad_checkpoint_is_refused_and_nothing_changes(
    tmp_path: Path, people: Population, spoil: Callable[[Path], None], sentence: str
) -> None:
    run(people, fedavg(cohort_size=3), tmp_path)
    spoil(tmp_path / "checkpoint.safetensors")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=sentence) as caught:
        run(people, fedavg(cohort_size=3), tmp_path, rounds=8, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort_size=3), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="already holds a run: continue it with resume="):
        run(people, fedavg(cohort_size=3), tmp_path)
    assert contents(tmp_path) == before


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_the_run_can_go_on(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(people, fedavgm(cohort_size=3), tmp_path / "straight", rounds=8)
    saves = []

    def full_from_the_fourth_on(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None) -> None:
        saves.append(path)
        if len(saves) >= 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, path, about)

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full_from_the_fourth_on)
        with pytest.raises(OSError, match="No space left on device"):
            run(people, fedavgm(cohort_size=3), tmp_path / "full", rounds=8)
    assert checkpoint.load(tmp_path / "full" / "checkpoint.safetensors", torch.device("cpu")).state.round == 2
    assert not list((tmp_path / "full").glob("*.writing"))
    run(people, fedavgm(cohort_size=3), tmp_path / "full", rounds=8, resume=True)
    straight, full = contents(tmp_path / "straight"), contents(tmp_path / "full")
    assert full["model.safetensors"] == straight["model.safetensors"]
