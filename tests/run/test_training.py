"""Training: a run stopped anywhere goes on as if it had not, and says what it did."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from manyeyes.algorithm import Algorithm, Client, Diverged
from manyeyes.algorithms import NAMED, centralised, fedavg, fedavgm, local_only
from manyeyes.data.augment import Augment
from manyeyes.engine.reference import Reference
from manyeyes.models import FrozenBatchNorm2d, build
from manyeyes.parts import Adam, Equally, Layers, Schedule
from manyeyes.population import MultiLabels, Population
from manyeyes.run import checkpoint, tensors
from manyeyes.run.events import read
from manyeyes.run.result import Result
from manyeyes.run.training import train

SMALL: dict[str, dict[str, Any]] = {
    "centralised": {"batch": 4},
    "fedvc": {"cohort": 3, "examples": 6, "batch": 4},
    "fedper": {"layers": 1, "cohort": 3, "batch": 4},
}
OF_OTHERS = ("fedbn", "finetuned")  # which want norms, and users with a part to be tested on
NAMED_SMALL = {
    name: make(**SMALL.get(name, {"cohort": 3, "batch": 4})) for name, make in NAMED.items() if name not in OF_OTHERS
}
MIXES = {
    "fedper": replace(fedavgm(cohort=3, batch=4), personal=Layers(("fc.bias",))),
    "kept_adam": replace(fedavg(cohort=3, batch=4), local=Adam(0.01, keep=True), weigh=Equally()),
    "warm_up": fedavg(cohort=3, batch=4, momentum=0.9, schedule=Schedule("cosine", rounds=8, warmup=3)),
}
GROWING = fedavg(cohort=3, batch=2, lr=1e3, weight_decay=1.0)  # a step multiplies the weights by 1 - 1000
CROPS = Augment(crop=6, pad=1, flip_horizontal=True)


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run without what the clock wrote."""
    return [
        {name: value for name, value in event.items() if name != "seconds"} for event in read(folder / "metrics.jsonl")
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def run(people: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    settings = {"rounds": 4, "evaluate_every": 2, "checkpoint_seconds": 0, "progress": False, **settings}
    return train(people, settings.pop("model", "linear"), algorithm, folder=folder, **settings)


# Going on


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
        ("algorithm=centralised", "augment.pad=2", "augment.flip_horizontal=true"),
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
        until(lambda goal=goal: metrics.exists() and metrics.read_bytes().count(b"\n") > goal)  # type: ignore[misc]
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
    run(people, fedavg(cohort=3), tmp_path)
    before = contents(tmp_path)
    assert run(people, fedavg(cohort=3), tmp_path, resume=True).final
    assert contents(tmp_path) == before


def test_a_continued_run_writes_down_its_new_settings(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort=3), tmp_path, about={"rounds": 4})
    run(people, fedavg(cohort=3), tmp_path, rounds=6, about={"rounds": 6}, resume=True)
    assert (tmp_path / "config.yaml").read_text() == "rounds: 6\n"


OTHERS: dict[str, Callable[[Population], dict[str, Any]]] = {
    "algorithm": lambda people: {"algorithm": fedavg(cohort=3, lr=0.02)},
    "seed": lambda people: {"seed": 1},
    "data": lambda people: {"people": people.where(np.arange(48) != 3)},
    "labels": lambda people: {"people": replace(people, labels=replace(people.labels, ids=people.labels.ids[::-1]))},
    "model": lambda people: {"model": build("lenet", 3, size=8, width=2)},
    "augment": lambda people: {"augment": CROPS},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_run_does_not_continue_this_one_and_changes_nothing(
    tmp_path: Path, people: Population, other: str
) -> None:
    run(people, fedavg(cohort=3), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="is a run of other data, model, algorithm or seed: continue it with its own"):
        run(**{"people": people, "algorithm": fedavg(cohort=3), **OTHERS[other](people)}, folder=tmp_path, resume=True)
    assert contents(tmp_path) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def of_another_version(path: Path) -> None:
    save_file(load_file(path), path, {"manyeyes": json.dumps({"version": 0})})


@pytest.mark.parametrize(("spoil", "sentence"), [(cut, "or is damaged"), (of_another_version, "version 0")])
def test_a_bad_checkpoint_is_refused_and_nothing_changes(
    tmp_path: Path, people: Population, spoil: Callable[[Path], None], sentence: str
) -> None:
    run(people, fedavg(cohort=3), tmp_path)
    spoil(tmp_path / "checkpoint.safetensors")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=sentence) as caught:
        run(people, fedavg(cohort=3), tmp_path, rounds=8, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort=3), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="already holds a run: continue it with resume="):
        run(people, fedavg(cohort=3), tmp_path)
    assert contents(tmp_path) == before


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_the_run_can_go_on(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(people, fedavgm(cohort=3), tmp_path / "straight", rounds=8)
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
            run(people, fedavgm(cohort=3), tmp_path / "full", rounds=8)
    assert checkpoint.load(tmp_path / "full" / "checkpoint.safetensors", torch.device("cpu")).state.round == 2
    assert not list((tmp_path / "full").glob("*.writing"))
    run(people, fedavgm(cohort=3), tmp_path / "full", rounds=8, resume=True)
    straight, full = contents(tmp_path / "straight"), contents(tmp_path / "full")
    assert full["model.safetensors"] == straight["model.safetensors"]


# Numbers that are not finite


def spoil_user(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    honest = Reference._client

    def client(self: Reference, weights: Tensor, client: Client, *rest: Any) -> Any:
        update, *others = honest(self, weights, client, *rest)
        return update * float("nan") if client.key == user else update, *others

    monkeypatch.setattr(Reference, "_client", client)


def test_a_client_whose_update_is_not_finite_is_left_out_counted_and_named(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_user(monkeypatch, 4)
    names = np.array(["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"])
    run(replace(people, names=names), fedavg(cohort=6), tmp_path, rounds=2)
    assert [event.get("left_out") for event in read(tmp_path / "metrics.jsonl")] == [None, ["eve"], ["eve"]]
    lines = [f"round {round}: the update of user eve was not finite and is left out\n" for round in (1, 2)]
    assert capsys.readouterr().err == "".join(lines)


def test_who_is_left_out_does_not_change_the_others(people: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    without = people.where(people.owners(np.arange(48)) != 4)
    expected = run(without, fedavg(cohort=5, batch=6), rounds=1).model.state_dict()
    spoil_user(monkeypatch, 4)
    found = run(people, fedavg(cohort=6, batch=6), rounds=1).model.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_run_that_diverges_stops_with_a_sentence_and_keeps_its_last_good_state(
    tmp_path: Path, people: Population
) -> None:
    with pytest.raises(
        Diverged, match=r"has diverged \(its last good checkpoint is in .*\).*: try a lower learning rate, or clip"
    ):
        run(people, GROWING, tmp_path, rounds=50, evaluate_every=0, checkpoint_seconds=1000)
    kept = checkpoint.load(tmp_path / "checkpoint.safetensors", torch.device("cpu")).state
    assert kept.round == read(tmp_path / "metrics.jsonl")[-1]["round"] > 0
    assert torch.isfinite(kept.weights).all()


def test_without_a_folder_divergence_names_none(people: Population) -> None:
    with pytest.raises(Diverged, match=r"finite(?: update)?: try a lower learning rate, or clip gradients$"):
        run(people, GROWING, rounds=50, evaluate_every=0)


# What is evaluated, and when


@pytest.mark.parametrize(
    ("every", "rounds"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (5, [0, 5]), (0, [0, 5]), (9, [0, 5])]
)
def test_evaluation_comes_first_last_and_every_so_many_rounds(
    people: Population, every: int, rounds: list[int]
) -> None:
    events = run(people, fedavg(cohort=3), rounds=5, evaluate_every=every).events
    assert [event["round"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert [event["round"] for event in events if "accuracy" in event] == rounds


def test_round_0_is_the_untrained_model(people: Population) -> None:
    model = build("linear", 3, size=8, seed=5)
    first = run(people, fedavg(cohort=3), model=model, rounds=1).events[0]
    test = people.split("test")
    with torch.no_grad():
        logits = model(Augment().evaluate(torch.from_numpy(test.pixels(np.arange(6)))))
    targets = torch.from_numpy(test.labels.targets(np.arange(6)))
    assert first["accuracy"] == int((logits.argmax(1) == targets).sum()) / 6
    assert first["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-6)
    assert "train_loss" not in first


def test_a_round_says_what_it_cost(people: Population) -> None:
    event = run(people, fedavg(cohort=3, epochs=2, batch=4), rounds=1).events[1]
    assert (event["clients"], event["images"], event["batches"]) == (3, 3 * 2 * 6, 2 * 2)


def test_the_tables_are_those_of_the_final_model(tmp_path: Path, people: Population) -> None:
    model = run(people, fedavg(cohort=3), tmp_path).model.eval()
    test = people.split("test")
    with torch.no_grad():
        guessed = model(Augment().evaluate(torch.from_numpy(test.pixels(np.arange(6))))).argmax(1).tolist()
    pairs = list(zip(test.labels.targets(np.arange(6)).tolist(), guessed, strict=True))
    lines = ["class,examples,accuracy"]
    for number, name in enumerate(test.classes):
        right = [guess == true for true, guess in pairs if true == number]
        lines.append(f"{name},{len(right)},{sum(right) / len(right) if right else 0.0}")
    assert (tmp_path / "per_class.csv").read_text().splitlines() == lines
    share = sum(guess == true for true, guess in pairs) / 6
    assert (tmp_path / "per_user.csv").read_text() == f"user,examples,accuracy\n7,6,{share}\n"


def test_val_is_evaluated_when_asked_for(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort=3), tmp_path, evaluate_on="val")
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_a_split_that_is_not_there_is_refused(people: Population) -> None:
    with pytest.raises(ValueError, match=r"has no dev split; it has test, train, val$"):
        run(people, fedavg(cohort=3), evaluate_on="dev")


def test_a_test_population_takes_the_place_of_the_splits(tmp_path: Path, people: Population) -> None:
    result = run(people, fedavg(cohort=8, batch=6), tmp_path, test=people.split("val"), rounds=1)
    assert result.events[1]["images"] == 48
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_without_splits_nothing_is_evaluated(tmp_path: Path, people: Population) -> None:
    result = run(replace(people, columns={}), fedavg(cohort=8), tmp_path)
    assert (result.score, result.final) == (None, {})
    assert not (tmp_path / "per_class.csv").exists()


def test_several_labels_are_scored_by_average_precision(people: Population) -> None:
    labels = MultiLabels.of(
        [[i % 3, (i // 3) % 3] if i % 3 != (i // 3) % 3 else [i % 3] for i in range(48)], ("a", "b", "c")
    )
    result = run(replace(people, labels=labels), fedavg(cohort=3))
    assert result.metric == "macro_ap"
    assert result.curve().rounds_E.tolist() == [0, 2, 4]


# What train leaves alone and what it writes


def test_the_module_that_is_given_is_not_changed(people: Population) -> None:
    model = build("linear", 3, size=8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = run(people, fedavg(cohort=3), model=model).model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(trained.state_dict()["fc.weight"], before["fc.weight"])


def test_the_saved_model_is_the_one_returned(tmp_path: Path, people: Population) -> None:
    model = run(people, fedavg(cohort=3), tmp_path).model.state_dict()
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == model.keys()
    assert all(torch.equal(saved[name], model[name]) for name in model)


@pytest.mark.parametrize("algorithm", [fedavg(cohort=3), centralised(), local_only()], ids=["fedavg", "pooled", "own"])
def test_a_folder_changes_nothing_of_the_training(tmp_path: Path, people: Population, algorithm: Algorithm) -> None:
    with_folder, without = run(people, algorithm, tmp_path).model, run(people, algorithm).model
    assert all(torch.equal(a, b) for a, b in zip(with_folder.parameters(), without.parameters(), strict=True))


def test_a_module_that_remembers_more_than_norms_do_is_refused(people: Population, tmp_path: Path) -> None:
    """Clients would find each other's power iteration, and a continued run another than it left."""
    iterated = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(192, 4))
    model = nn.Sequential(nn.Flatten(), iterated, nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"the model changes its buffer 1\.parametrizations\.weight\.0\._u when"):
        run(people, fedavg(cohort=3), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    norms = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), FrozenBatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    assert run(people, fedavg(cohort=3), model=norms).events[-1]["round"] == 4


def test_nothing_is_printed_when_nobody_looks(people: Population, capfd: pytest.CaptureFixture[str]) -> None:
    run(people, fedavg(cohort=3), progress=None)
    assert capfd.readouterr() == ("", "")


def test_tensorboard_gets_the_curve_of_a_stopped_and_continued_run(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort=3), tmp_path, trackers=("tensorboard",))
    result = run(people, fedavg(cohort=3), tmp_path, trackers=("tensorboard",), rounds=6, resume=True)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [point.step for point in board.Scalars("accuracy")] == result.curve().rounds_E.tolist() == [0, 2, 4, 6]
    assert [point.value for point in board.Scalars("accuracy")] == pytest.approx(result.curve().values_E.tolist())
    assert [point.step for point in board.Scalars("train_loss")] == [1, 2, 3, 4, 5, 6]


def test_after_a_tracker_was_missing_the_same_folder_can_be_used(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(ValueError, match="TensorBoard is not installed"):
            run(people, fedavg(cohort=3), tmp_path, trackers=("tensorboard",))
    run(people, fedavg(cohort=3), tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0: it must be at least 1"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"evaluate_every": -1}, "evaluate_every is -1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds is nan"),
        ({"trackers": ("paper",)}, "tracker 'paper' is unknown: choose tensorboard, mlflow, wandb"),
        ({"engine": "steam"}, "engine 'steam' is unknown: choose auto or reference"),
        ({"prefetch": -1}, "prefetch is -1: it must be at least 0"),
        ({"resident": "moon"}, "resident is 'moon': choose auto, device, host"),
        ({"device": "abacus"}, "device 'abacus' is unknown: choose auto, cpu or cuda"),
        ({"augment": Augment(crop=20)}, "a crop of 20 pixels does not fit"),
        ({"algorithm": fedavg(cohort=7)}, "a cohort of 7 clients is asked of 6 users"),
        ({"model": "resnet81"}, "'resnet81' is not known"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(
    tmp_path: Path, people: Population, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(**{"people": people, "algorithm": fedavg(cohort=3), **settings}, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
