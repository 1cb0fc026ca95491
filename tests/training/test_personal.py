"""Personal runs: every user's own result, exact on resume wherever clients' records are, and blind to test images."""

from __future__ import annotations

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
from torch import nn

from manyeyes.algorithms import ditto, fedavg, fedbn, fedper, fedrep, finetuned, local_only
from manyeyes.components import EpochBatching, MatchingLayers, VirtualClientBatching
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training import checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.result import Result
from manyeyes.training.train import train
from tests.training.small_runs import same, timeless

CPU = torch.device("cpu")
HEAD = MatchingLayers(("4.*",))
PERSONAL: dict[str, Algorithm] = {
    "fedper": replace(fedper(cohort_size=3, batch_size=4, momentum=0.5, lr=0.05), personal_layers=HEAD),
    "fedrep": replace(fedrep(cohort_size=3, batch_size=4, head_epochs=1, lr=0.05), personal_layers=HEAD),
    "fedbn": fedbn(cohort_size=3, batch_size=4, lr=0.05),
    "ditto": ditto(cohort_size=3, batch_size=4, lr=0.05),
    "finetuned": finetuned(cohort_size=3, batch_size=4, lr=0.05),
    "fedper, finetuned": replace(finetuned(cohort_size=3, batch_size=4, lr=0.05), personal_layers=HEAD),
    "local_only": local_only(batch_size=4, lr=0.05),
}


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.fixture
def people() -> Population:
    """Six users of nine photos, three of them for testing, and one of a single photo to train on."""
    rng = np.random.default_rng(0)
    owners = np.append(np.repeat(np.arange(6), 9), 6)
    labels = rng.integers(3, size=55)
    pixels = rng.integers(0, 200, (55, 8, 8, 3))
    pixels[np.arange(55), :, :, labels] += 55
    split = np.append(np.tile(["train"] * 6 + ["test"] * 3, 6), "train")
    return Population.from_arrays(
        pixels.astype(np.uint8), SingleLabels(labels, ("red", "green", "blue")), owners, split=split
    )


def run(people: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    settings = {"rounds": 4, "evaluate_every": 2, "checkpoint_seconds": 0, "progress": False, **settings}
    settings.setdefault("engine", "reference")
    return train(people, settings.pop("model", module()), algorithm, folder=folder, **settings)


def kept(folder: Path) -> dict[int, dict[str, torch.Tensor]]:
    found = checkpoint.load(folder / "checkpoint.safetensors", CPU)
    return dict(ClientStateStore.open(folder / "clients.bin", found.clients, CPU, 2**20, writes=False))


def state(folder: Path) -> dict[str, torch.Tensor]:
    """All numbers that a run has come to."""
    found = checkpoint.load(folder / "checkpoint.safetensors", CPU).state
    clients = {f"{key}/{name}": tensor for key, own in kept(folder).items() for name, tensor in own.items()}
    return {"weights": found.weights, **found.opt_state, **clients}


@pytest.mark.parametrize("memory", [0, 1024], ids=["files", "memory"])
@pytest.mark.parametrize("name", PERSONAL)
def test_a_continued_run_equals_one_that_was_never_stopped(
    tmp_path: Path, people: Population, name: str, memory: int
) -> None:
    run(people, PERSONAL[name], tmp_path / "straight", rounds=6)
    run(people, PERSONAL[name], tmp_path / "parts", rounds=4, client_memory=memory)
    run(people, PERSONAL[name], tmp_path / "parts", rounds=6, client_memory=memory, resume=True)
    assert same(state(tmp_path / "parts"), state(tmp_path / "straight"))
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "straight")
    for file in ("model.safetensors", "per_class.csv", "per_user.csv"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


@pytest.mark.parametrize("memory", [0, 1024], ids=["files", "memory"])
def test_a_run_killed_at_random_moments_equals_one_that_was_never_stopped(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], until: Callable[..., None], command: Any, memory: int
) -> None:
    words = "data.users=40 data.images_per_user=12 data.split=per_user model=linear algorithm=fedper algorithm.head_layers=1"
    more = "algorithm.cohort=4 algorithm.batch=6 engine=reference engine.threads=1 evaluate_every=5"
    tiny = (*words.split(), *more.split(), "checkpoint_seconds=0", f"client_memory={memory}")
    metrics, chance, played = tmp_path / "killed" / "metrics.jsonl", random.Random(memory), 0
    start: tuple[str, ...] = (*tiny, "rounds=1000000", "folder=killed")
    for _ in range(2):
        process = spawn("-m", "manyeyes", "run", *start)
        goal = played + chance.randint(2, 12)
        until(lambda goal=goal: metrics.exists() and metrics.read_bytes().count(b"\n") > goal)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        played = checkpoint.load(tmp_path / "killed" / "checkpoint.safetensors", CPU).state.round
        start = ("resume=killed",)
    assert command("run", "resume=killed", f"rounds={played + 5}").code == 0
    assert command("run", *tiny, f"rounds={played + 5}", "folder=straight").code == 0
    assert same(state(tmp_path / "killed"), state(tmp_path / "straight"))
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "straight")


@pytest.mark.parametrize("name", PERSONAL)
def test_test_images_never_change_any_state(tmp_path: Path, people: Population, name: str) -> None:
    pixels, split = people.images.copy(), np.asarray(people.columns["split"])
    tested = people.image_indices[split == "test"]
    pixels[tested] = np.random.default_rng(9).integers(0, 256, pixels[tested].shape)
    run(people, PERSONAL[name], tmp_path / "one", evaluate_every=1)
    run(replace(people, images=pixels), PERSONAL[name], tmp_path / "other", evaluate_every=2)
    assert same(state(tmp_path / "one"), state(tmp_path / "other"))
    assert (tmp_path / "one" / "per_user.csv").read_text() != (tmp_path / "other" / "per_user.csv").read_text()


@pytest.mark.parametrize("engine", ["multiprocess", "cuda_graphs"])
@pytest.mark.parametrize("name", PERSONAL)
def test_every_engine_comes_to_the_same_results(people: Population, engine: str, name: str) -> None:
    wanted = run(people, PERSONAL[name]).events[-1]
    found = run(people, PERSONAL[name], engine=engine, workers=2 if engine == "multiprocess" else 0).events[-1]
    assert found.keys() == wanted.keys()
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
    if "adapted_loss" in wanted:
        assert found["adapted_loss"] == pytest.approx(wanted["adapted_loss"], rel=1e-3)


def accuracy(weights: torch.Tensor, people: Population, user: int) -> float:
    """By hand: a model's accuracy on one user's photos."""
    model = module()
    FlatModel(model).write(weights)
    examples = people.examples(user)
    with torch.no_grad():
        logits = model.eval()(Preprocess().evaluate(torch.from_numpy(people.pixels(examples))))
    return float((logits.argmax(1).numpy() == people.labels.targets(examples)).mean())


def test_every_user_is_scored_with_its_own_layers_and_a_new_one_with_the_shared(
    tmp_path: Path, people: Population
) -> None:
    result = run(people, replace(PERSONAL["fedper"], sampler=fedavg(cohort_size=2).sampler), tmp_path, rounds=1)
    test, mask = people.split("test"), FlatModel(module()).mask(HEAD.parameter_names(module()).__contains__)
    weights, own = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).state.weights, kept(tmp_path)
    assert len(own) == 2
    wanted = []
    for user, key in enumerate(test.user_ids.tolist()):
        mine = weights.clone()
        if key in own:
            mine[mask] = own[key]["personal"]
        wanted.append(accuracy(mine, test, user))
    assert result.final["user_mean"] == pytest.approx(np.mean(wanted))
    lines = (tmp_path / "per_user.csv").read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines[1:]] == pytest.approx(wanted)


def test_ditto_is_scored_with_the_shared_model_and_with_each_clients_own(tmp_path: Path, people: Population) -> None:
    result = run(people, PERSONAL["ditto"], tmp_path)
    test, own = people.split("test"), kept(tmp_path)
    weights = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).state.weights
    shared = [accuracy(weights, test, user) for user in range(6)]
    mine = [accuracy(own[u]["beside/personal"] if u in own else weights, test, u) for u in range(6)]
    assert result.final["user_mean"] == pytest.approx(np.mean(shared))
    assert result.final["adapted_user_mean"] == pytest.approx(np.mean(mine))
    assert (tmp_path / "per_user.csv").read_text().splitlines()[0] == "user,examples,accuracy,adapted"


def test_where_no_tested_user_has_a_model_beside_some_clients_models_are_scored() -> None:
    """Two train, each with a model of its own, and two are tested with both: each on four photos."""
    owners = np.repeat(np.arange(4), 4)
    labels = SingleLabels(np.arange(16) % 3, ("a", "b", "c"))
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    people = Population.from_arrays(images, labels, owners, split=np.where(owners < 2, "train", "test"))
    first, last = (event for event in run(people, ditto(cohort_size=2, batch_size=4, lr=0.5), rounds=1).events)
    assert (first["adapted_examples"], last["examples"], last["adapted_examples"]) == (8, 8, 16)
    assert first["adapted_loss"] == first["loss"]
    assert last["adapted_loss"] != last["loss"]


def test_fine_tuning_is_sgd_on_the_users_own_training_part(people: Population) -> None:
    """One step on all six photos, by hand."""
    algorithm = finetuned(cohort_size=3, batch_size=6, lr=0.05)
    result = run(people, algorithm, rounds=1, model=module())
    train_part, test, scores = people.split("train"), people.split("test"), []
    for user in range(6):
        model = result.model.__class__(*module().children())
        model.load_state_dict(result.model.state_dict())
        examples = train_part.examples(user)
        images = Preprocess().evaluate(torch.from_numpy(train_part.pixels(examples)))
        targets = torch.from_numpy(train_part.labels.targets(examples))
        loss = nn.functional.cross_entropy(model.train()(images), targets)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.05 * slope
        scores.append(accuracy(FlatModel(model).read(), test, user))
    assert result.final["adapted_user_mean"] == pytest.approx(np.mean(scores))


def test_users_too_small_to_be_tested_are_counted(people: Population) -> None:
    assert run(people, PERSONAL["fedper"]).events[-1]["user_untested"] == 1


def test_users_without_a_positive_are_counted_and_the_others_scored(people: Population) -> None:
    tags = [[] if owner == 2 else [int(i) % 3] for i, owner in enumerate(people.owners(np.arange(55)))]
    several = replace(people, labels=MultiLabels.from_lists(tags, ("red", "green", "blue")))
    final = run(several, PERSONAL["fedper, finetuned"]).final
    assert (final["num_users_scored"], final["num_users_unscorable"]) == (5, 1)
    assert (final["adapted_num_users_scored"], final["adapted_num_users_unscorable"]) == (5, 1)


def test_fine_tuning_without_users_to_tune_for_is_refused(people: Population) -> None:
    with pytest.raises(ValueError, match="here none has both: split the data within users"):
        run(
            people.filter(people.owners(np.arange(55)) < 3),
            finetuned(cohort_size=3),
            test=people.split("test").filter(people.split("test").owners(np.arange(18)) >= 3),
        )


def test_a_damaged_record_costs_its_own_client_alone(
    tmp_path: Path, people: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    run(people, replace(PERSONAL["fedper"], sampler=local_only().sampler), tmp_path, client_memory=0)
    data = bytearray((tmp_path / "clients.bin").read_bytes())
    index = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).clients
    data[int(index.records[index.keys.tolist().index(4), 1])] ^= 1
    (tmp_path / "clients.bin").write_bytes(data)
    run(people, replace(PERSONAL["fedper"], sampler=local_only().sampler), tmp_path, rounds=6, resume=True)
    line = f"what client 4 kept is damaged in {tmp_path / 'clients.bin'}: it starts again from the shared model\n"
    assert capsys.readouterr().err == line
    assert len(kept(tmp_path)) == 7


def test_a_batch_of_one_that_batch_norm_cannot_learn_from_is_refused(people: Population, tmp_path: Path) -> None:
    model = build_model("mobilenet_v1", 3, norm="batch", size=8)
    with pytest.raises(ValueError, match="a batch of one photo of 8 x 8 pixels, and a user who holds 1 has one"):
        train(people, model, fedper(cohort_size=3, batch_size=5), rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_of_one_that_only_fine_tuning_makes_is_refused_too(tmp_path: Path) -> None:
    """Rounds draw four of a user's five photos, or six with repeats; fine-tuning goes over all five."""
    labels = SingleLabels(np.zeros(12, int), ("a",))
    split = np.array((["train"] * 5 + ["test"]) * 2)
    people = Population.from_arrays(np.zeros((12, 8, 8, 3), np.uint8), labels, np.repeat([0, 1], 6), split=split)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    for draw in (EpochBatching(1, 4, max_examples=4), VirtualClientBatching(6, 2)):
        train(people, model, replace(fedavg(cohort_size=2), batching=draw), rounds=1, engine="reference")
        with pytest.raises(ValueError, match="a batch of one photo of 8 x 8 pixels, and a user who holds 5 has one"):
            train(people, model, replace(finetuned(cohort_size=2), batching=draw), rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_need_not_be_square_for_batch_norm() -> None:
    people = Population.from_arrays(
        np.zeros((5, 6, 9, 3), np.uint8), SingleLabels(np.zeros(5, int), ("a",)), np.zeros(5, int)
    )
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(56, 1))
    assert (
        train(people, model, fedavg(cohort_size=1, batch_size=4), rounds=1).events[-1]["images"] == 5
    )  # one in the last batch


@pytest.mark.parametrize(("clients", "scored"), [(3, 3), (50, 50), (120, 50)])
def test_where_no_tested_user_has_layers_some_clients_models_are_scored(clients: int, scored: int) -> None:
    owners = np.repeat(np.arange(clients + 2), 2)
    split = np.where(owners < clients, "train", "test")
    labels = SingleLabels(np.arange(len(owners)) % 3, ("a", "b", "c"))
    images = np.random.default_rng(0).integers(0, 256, (len(owners), 8, 8, 3), np.uint8)
    people = Population.from_arrays(images, labels, owners, split=split)
    linear = build_model("linear", 3, size=8)
    found = run(
        people,
        replace(fedper(cohort_size=clients, batch_size=2), personal_layers=MatchingLayers(("fc.*",))),
        model=linear,
        rounds=1,
    )
    assert found.final["examples"] == scored * 4
