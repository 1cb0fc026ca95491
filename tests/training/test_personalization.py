"""Personalized runs: each user has its own score, resume is exact, and test images never change a state."""

from __future__ import annotations

import subprocess
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
from manyeyes.core.state import ClientState
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training import checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.result import Result
from manyeyes.training.run_reader import read_run
from manyeyes.training.train import train
from tests.training.small_runs import equal_tensors, events_without_times, kill_twice

CPU = torch.device("cpu")
HEAD = MatchingLayers(("4.*",))
PERSONALIZED: dict[str, Algorithm] = {
    "fedper": replace(fedper(cohort_size=3, batch_size=4, momentum=0.5, lr=0.05), personal_layers=HEAD),
    "fedrep": replace(fedrep(cohort_size=3, batch_size=4, head_epochs=1, lr=0.05), personal_layers=HEAD),
    "fedbn": fedbn(cohort_size=3, batch_size=4, lr=0.05),
    "ditto": ditto(cohort_size=3, batch_size=4, lr=0.05),
    "finetuned": finetuned(cohort_size=3, batch_size=4, lr=0.05),
    "fedper, finetuned": replace(finetuned(cohort_size=3, batch_size=4, lr=0.05), personal_layers=HEAD),
    "local_only": local_only(batch_size=4, lr=0.05),
}
NAMES = [
    name if name in ("fedper", "ditto", "finetuned") else pytest.param(name, marks=pytest.mark.slow)
    for name in PERSONALIZED
]


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.fixture
def population() -> Population:
    """Return six users of nine images, three of them for testing, and a user of one training image."""
    rng = np.random.default_rng(0)
    owners = np.append(np.repeat(np.arange(6), 9), 6)
    labels = rng.integers(3, size=55)
    pixels = rng.integers(0, 200, (55, 8, 8, 3))
    pixels[np.arange(55), :, :, labels] += 55
    split = np.append(np.tile(["train"] * 6 + ["test"] * 3, 6), "train")
    return Population.from_arrays(
        pixels.astype(np.uint8), SingleLabels(labels, ("red", "green", "blue")), owners, split=split
    )


def run(population: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    settings = {"rounds": 4, "evaluate_every": 2, "checkpoint_seconds": 0, "progress": False, **settings}
    settings.setdefault("engine", "reference")
    return train(population, settings.pop("model", module()), algorithm, folder=folder, **settings)


def client_states(folder: Path) -> dict[int, ClientState]:
    saved = checkpoint.load(folder / "checkpoint.safetensors", CPU)
    return dict(ClientStateStore(folder / "clients.bin", CPU, 2**20, saved.clients, writes=False))


def all_states(folder: Path) -> dict[str, torch.Tensor]:
    """Return the states of the server and of the clients."""
    server = checkpoint.load(folder / "checkpoint.safetensors", CPU).state
    clients = {
        f"{client_id}/{name}": tensor
        for client_id, state in client_states(folder).items()
        for name, tensor in state.items()
    }
    return {"weights": server.weights, **server.opt_state, **clients}


@pytest.mark.fast_cases("fedper-file")
@pytest.mark.parametrize("cache_mib", [0, pytest.param(1024, marks=pytest.mark.slow)], ids=["file", "memory"])
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_one_that_was_never_stopped(
    tmp_path: Path, population: Population, name: str, cache_mib: int
) -> None:
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    run(population, PERSONALIZED[name], uninterrupted, rounds=6)
    run(population, PERSONALIZED[name], resumed, rounds=4, client_state_cache_mib=cache_mib)
    run(population, PERSONALIZED[name], resumed, rounds=6, client_state_cache_mib=cache_mib, resume=True)
    assert equal_tensors(all_states(resumed), all_states(uninterrupted))
    assert events_without_times(resumed) == events_without_times(uninterrupted)
    for file in ("model.safetensors", "per_class.csv", "per_user.csv"):
        assert (resumed / file).read_bytes() == (uninterrupted / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("cache_mib", [0, 1024], ids=["file", "memory"])
def test_a_run_killed_at_random_moments_equals_one_that_was_never_stopped(
    tmp_path: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    until: Callable[..., None],
    command: Any,
    tiny: tuple[str, ...],
    cache_mib: int,
) -> None:
    args = (*tiny, "data.split=per_user", "algorithm=fedper", "algorithm.head_layers=1", "engine=reference")
    args = (*args, f"client_state_cache_mib={cache_mib}")
    saved_round = kill_twice(tmp_path / "killed", args, spawn, until)
    assert command("run", "resume=killed", f"rounds={saved_round + 5}").code == 0
    assert command("run", *args, f"rounds={saved_round + 5}", "folder=uninterrupted").code == 0
    assert equal_tensors(all_states(tmp_path / "killed"), all_states(tmp_path / "uninterrupted"))
    assert events_without_times(tmp_path / "killed") == events_without_times(tmp_path / "uninterrupted")


@pytest.mark.fast_cases("fedper")
@pytest.mark.parametrize("name", NAMES)
def test_test_images_never_change_any_state(tmp_path: Path, population: Population, name: str) -> None:
    pixels, split = population.images.copy(), np.asarray(population.columns["split"])
    test_images = population.image_indices[split == "test"]
    pixels[test_images] = np.random.default_rng(9).integers(0, 256, pixels[test_images].shape)
    run(population, PERSONALIZED[name], tmp_path / "first", evaluate_every=1)
    run(replace(population, images=pixels), PERSONALIZED[name], tmp_path / "second", evaluate_every=2)
    assert equal_tensors(all_states(tmp_path / "first"), all_states(tmp_path / "second"))
    assert (tmp_path / "first" / "per_user.csv").read_text() != (tmp_path / "second" / "per_user.csv").read_text()


@pytest.mark.parametrize("engine", ["multiprocess", "cuda_graphs"])
@pytest.mark.parametrize(
    "name", [name if name == "fedper" else pytest.param(name, marks=pytest.mark.slow) for name in PERSONALIZED]
)
def test_every_engine_gives_the_same_results(population: Population, engine: str, name: str) -> None:
    expected = run(population, PERSONALIZED[name]).events[-1]
    event = run(population, PERSONALIZED[name], engine=engine, workers=2 if engine == "multiprocess" else 0).events[-1]
    assert event.keys() == expected.keys()
    for metric in {"loss", "personalized_loss"} & expected.keys():
        assert event[metric] == pytest.approx(expected[metric], rel=1e-3)


def accuracy(weights: torch.Tensor, population: Population, user: int) -> float:
    """Return a model's accuracy on one user's images, computed by hand."""
    model = module()
    FlatModel(model).write(weights)
    examples = population.examples(user)
    with torch.no_grad():
        logits = model.eval()(Preprocess().evaluate(torch.from_numpy(population.pixels(examples))))
    return float((logits.argmax(1).numpy() == population.labels.targets(examples)).mean())


def test_users_are_scored_with_their_personal_layers_and_new_users_with_the_shared_ones(
    tmp_path: Path, population: Population
) -> None:
    result = run(population, replace(PERSONALIZED["fedper"], sampler=fedavg(cohort_size=2).sampler), tmp_path, rounds=1)
    test, mask = population.split("test"), FlatModel(module()).mask(HEAD.parameter_names(module()).__contains__)
    weights = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).state.weights
    states = client_states(tmp_path)
    assert len(states) == 2
    expected = []
    for user, client_id in enumerate(test.user_ids.tolist()):
        personal = weights.clone()
        if client_id in states:
            personal[mask] = states[client_id]["personal_weights"]
        expected.append(accuracy(personal, test, user))
    assert result.final["user_mean"] == pytest.approx(np.mean(expected))
    lines = (tmp_path / "per_user.csv").read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines[1:]] == pytest.approx(expected)


def test_ditto_scores_the_shared_model_and_the_personal_models(tmp_path: Path, population: Population) -> None:
    result = run(population, PERSONALIZED["ditto"], tmp_path)
    test, states = population.split("test"), client_states(tmp_path)
    weights = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).state.weights
    shared = [accuracy(weights, test, user) for user in range(6)]
    models = {client_id: state["personal_model/personal_weights"] for client_id, state in states.items()}
    personalized = [accuracy(models.get(user, weights), test, user) for user in range(6)]
    assert result.final["user_mean"] == pytest.approx(np.mean(shared))
    assert result.final["personalized_user_mean"] == pytest.approx(np.mean(personalized))
    header, *lines = (tmp_path / "per_user.csv").read_text().splitlines()
    assert header == "user,examples,personalized_accuracy,accuracy"
    assert [float(line.split(",")[2]) for line in lines] == pytest.approx(personalized)
    assert result.metric == "personalized_accuracy"
    assert result.curve().values_E[-1] == pytest.approx(result.final["personalized_accuracy"])
    assert read_run(tmp_path).metric == "personalized_accuracy"


def test_users_without_a_personal_model_are_scored_with_those_of_some_clients() -> None:
    """Two users train, each with a personal model, and two others are tested with both: each on four images."""
    owners = np.repeat(np.arange(4), 4)
    labels = SingleLabels(np.arange(16) % 3, ("a", "b", "c"))
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    population = Population.from_arrays(images, labels, owners, split=np.where(owners < 2, "train", "test"))
    first, last = (event for event in run(population, ditto(cohort_size=2, batch_size=4, lr=0.5), rounds=1).events)
    assert (first["personalized_examples"], last["examples"], last["personalized_examples"]) == (8, 8, 16)
    assert first["personalized_loss"] == first["loss"]
    assert last["personalized_loss"] != last["loss"]


def test_fine_tuning_is_sgd_on_the_users_training_images(population: Population) -> None:
    """One step on all six images, by hand."""
    algorithm = finetuned(cohort_size=3, batch_size=6, lr=0.05)
    result = run(population, algorithm, rounds=1, model=module())
    train_split, test, scores = population.split("train"), population.split("test"), []
    for user in range(6):
        model = result.model.__class__(*module().children())
        model.load_state_dict(result.model.state_dict())
        examples = train_split.examples(user)
        images = Preprocess().evaluate(torch.from_numpy(train_split.pixels(examples)))
        targets = torch.from_numpy(train_split.labels.targets(examples))
        loss = nn.functional.cross_entropy(model.train()(images), targets)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(0.05 * grad)
        scores.append(accuracy(FlatModel(model).read(), test, user))
    assert result.final["personalized_user_mean"] == pytest.approx(np.mean(scores))


def test_users_without_test_images_are_counted(population: Population) -> None:
    assert run(population, PERSONALIZED["fedper"]).events[-1]["num_users_without_test"] == 1


def test_users_without_a_positive_are_counted_and_the_others_scored(population: Population) -> None:
    tags = [[] if owner == 2 else [int(i) % 3] for i, owner in enumerate(population.owners(np.arange(55)))]
    multi_label = replace(population, labels=MultiLabels.from_lists(tags, ("red", "green", "blue")))
    final = run(multi_label, PERSONALIZED["fedper, finetuned"]).final
    assert (final["num_users_scored"], final["num_users_unscorable"]) == (5, 1)
    assert (final["personalized_num_users_scored"], final["personalized_num_users_unscorable"]) == (5, 1)


def test_fine_tuning_needs_users_with_training_and_test_images(population: Population) -> None:
    with pytest.raises(ValueError, match="no user has both: split the data within users"):
        run(
            population.filter(population.owners(np.arange(55)) < 3),
            finetuned(cohort_size=3),
            test=population.split("test").filter(population.split("test").owners(np.arange(18)) >= 3),
        )


def test_a_damaged_record_restarts_only_its_client(
    tmp_path: Path, population: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    run(population, replace(PERSONALIZED["fedper"], sampler=local_only().sampler), tmp_path, client_state_cache_mib=0)
    data = bytearray((tmp_path / "clients.bin").read_bytes())
    index = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU).clients
    offset = next(offset for client_id, offset, _, _ in index.tolist() if client_id == 4)
    data[offset] ^= 1
    (tmp_path / "clients.bin").write_bytes(data)
    run(population, replace(PERSONALIZED["fedper"], sampler=local_only().sampler), tmp_path, rounds=6, resume=True)
    assert f"The state of client 4 in {tmp_path / 'clients.bin'} is damaged" in capsys.readouterr().err
    assert len(client_states(tmp_path)) == 7


def test_a_batch_of_one_image_is_refused_with_batch_norm(population: Population, tmp_path: Path) -> None:
    model = build_model("mobilenet_v1", 3, norm="live", size=8)
    with pytest.raises(ValueError, match="a batch of one image of 8 x 8 pixels, and a user with 1 images has one"):
        train(population, model, fedper(cohort_size=3, batch_size=5), rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_of_one_image_that_only_fine_tuning_has_is_refused_too(tmp_path: Path) -> None:
    """Rounds train on four of a user's five images, or on six with repeats; fine-tuning trains on all five."""
    labels = SingleLabels(np.zeros(12, int), ("a",))
    split = np.array((["train"] * 5 + ["test"]) * 2)
    population = Population.from_arrays(np.zeros((12, 8, 8, 3), np.uint8), labels, np.repeat([0, 1], 6), split=split)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    for batching in (EpochBatching(1, 4, max_examples=4), VirtualClientBatching(6, 2)):
        train(population, model, replace(fedavg(cohort_size=2), batching=batching), rounds=1, engine="reference")
        with pytest.raises(ValueError, match="a batch of one image of 8 x 8 pixels, and a user with 5 images has one"):
            train(
                population,
                model,
                replace(finetuned(cohort_size=2), batching=batching),
                rounds=1,
                folder=tmp_path / "run",
            )
    assert not (tmp_path / "run").exists()


def test_images_need_not_be_square_for_batch_norm() -> None:
    population = Population.from_arrays(
        np.zeros((5, 6, 9, 3), np.uint8), SingleLabels(np.zeros(5, int), ("a",)), np.zeros(5, int)
    )
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(56, 1))
    event = train(population, model, fedavg(cohort_size=1, batch_size=4), rounds=1).events[-1]
    assert event["num_images"] == 5  # one in the last batch


@pytest.mark.parametrize(("num_clients", "num_scored"), [(3, 3), (50, 50), (120, 50)])
def test_users_without_personal_layers_are_scored_with_those_of_some_clients(num_clients: int, num_scored: int) -> None:
    owners = np.repeat(np.arange(num_clients + 2), 2)
    split = np.where(owners < num_clients, "train", "test")
    labels = SingleLabels(np.arange(len(owners)) % 3, ("a", "b", "c"))
    images = np.random.default_rng(0).integers(0, 256, (len(owners), 8, 8, 3), np.uint8)
    population = Population.from_arrays(images, labels, owners, split=split)
    algorithm = replace(fedper(cohort_size=num_clients, batch_size=2), personal_layers=MatchingLayers(("fc.*",)))
    final = run(population, algorithm, model=build_model("linear", 3, size=8), rounds=1).final
    assert final["examples"] == num_scored * 4
