"""What a private run records: two runs on data that differ in one user differ only through the noised sums."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients, MatchingLayers, PoissonSampler, UniformSampler, WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import DivergenceError
from manyeyes.privacy.mechanisms import CentralDP, LocalDP
from manyeyes.training.checkpoint import load
from manyeyes.training.config import RunConfig
from manyeyes.training.run_files import CHECKPOINT_FILE, CLIENT_STATES_FILE, LOCK_FILE
from manyeyes.training.run_folder import read_events
from manyeyes.training.withholding import PUBLIC_FIELDS
from tests.training.small_runs import run

SERVER_FILES = (CHECKPOINT_FILE, CLIENT_STATES_FILE, LOCK_FILE)  # to continue the run, and shown to no user
DELTA = 1e-3
FEDAVG = replace(fedavg(batch_size=4, lr=0.1), sampler=PoissonSampler(4), client_weighting=WeightUniformly())
CENTRAL = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA)
REPLACED = 2  # the user in whom two populations differ


@dataclass(frozen=True)
class BlindCentral(CentralDP):
    """Publishes noise alone, always the same: whatever else a run shows of a user has not come through the mechanism."""

    reproducible_noise: bool = True

    def privatize(self, result: Any, *args: Any) -> Any:
        return super().privatize(blind(result), *args)


@dataclass(frozen=True)
class BlindLocal(LocalDP):
    reproducible_noise: bool = True

    def privatize(self, result: Any, *args: Any) -> Any:
        return super().privatize(blind(result), *args)


def blind(result: Any) -> Any:
    """Return the result of a cohort without anything of its clients."""
    norm_K, accepted_K = np.zeros_like(result.norm_K), np.ones_like(result.accepted_K)
    return replace(result, update_W=torch.zeros_like(result.update_W), norm_K=norm_K, accepted_K=accepted_K)


BLIND = BlindCentral(epsilon=0, noise_multiplier=2.0, delta=DELTA)


def make_population(num_images: int, seed: int, tested: str = "others") -> Population:
    """Return six users of six images for training, one of whom may have others, and who is tested: others or the same."""
    counts = np.full(8, 6)
    counts[REPLACED] = num_images
    owners = np.repeat(np.arange(8), counts)
    labels, pixels = draw(0, owners, 3)
    labels[owners == REPLACED], pixels[owners == REPLACED] = draw(seed, owners[owners == REPLACED], 3)
    split = np.where(owners < 6, "train", "test")
    if tested == "training users":
        test = owners != REPLACED
        owners, labels = np.concatenate([owners, owners[test]]), np.concatenate([labels, labels[test]])
        pixels = np.concatenate([pixels, pixels[test][::-1]])
        split = np.concatenate([np.full(len(test), "train"), np.full(test.sum(), "test")])
    order = np.argsort(owners, kind="stable")
    classes = SingleLabels(labels[order], ("red", "green", "blue"))
    columns = {} if tested == "no user" else {"split": split[order]}
    return Population.from_arrays(pixels[order], classes, owners[order], **columns)


def draw(seed: int, owners: Any, classes: int) -> tuple[Any, Any]:
    """Return labels and images that do not depend on how many images other users have."""
    rngs = [np.random.default_rng([seed, int(owner)]) for owner in np.unique(owners)]
    counts = np.bincount(owners)[np.unique(owners)]
    pairs = [
        (rng.integers(classes, size=count), rng.integers(0, 256, (count, 8, 8, 3), np.uint8))
        for rng, count in zip(rngs, counts, strict=True)
    ]
    return np.concatenate([labels for labels, _ in pairs]), np.concatenate([pixels for _, pixels in pairs])


def neighbors(tested: str = "others") -> tuple[Population, Population]:
    """Return two populations that differ in the images, the labels and the number of images of one user."""
    return make_population(6, 1, tested), make_population(17, 2, tested)


def published(folder: Path) -> dict[str, bytes]:
    """Return the content of the files that a reader gets."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in SERVER_FILES}


class OverflowForRed:
    """A loss whose gradient is not finite for images of class 0."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.where(targets == 0, outputs.sum(1) * math.inf, outputs.logsumexp(1))


class InfiniteValue:
    """A loss that is infinite and has a finite gradient."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.logsumexp(1) + math.inf


class Witness:
    """A callback that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_evaluate(self, run: Any, event: dict[str, Any]) -> None:
        self.events.append(event)

    on_round_end = on_evaluate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "tested"),
    [
        (replace(FEDAVG, privacy=BLIND), "others"),
        (replace(FEDAVG, privacy=BLIND), "training users"),
        (replace(FEDAVG, privacy=BLIND, personal_layers=MatchingLayers(("fc.bias",))), "no user"),
        (replace(FEDAVG, privacy=replace(BLIND, target_quantile=0.5), sampler=AllClients()), "others"),
        (replace(FEDAVG, privacy=BlindLocal(3.0, delta=DELTA), sampler=UniformSampler(3)), "training users"),
    ],
    ids=["central", "central-evaluated", "personal-layers", "adaptive-clipping", "local-evaluated"],
)
def test_apart_from_the_noised_sums_nothing_depends_on_one_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: Algorithm, tested: str
) -> None:
    shown = []
    for name, population in zip("ab", neighbors(tested), strict=True):
        witness = Witness()
        run(population, algorithm, tmp_path / name, rounds=3, callbacks=[witness])
        shown.append((published(tmp_path / name), witness.events, capsys.readouterr()))
    (first, *_), (second, *_) = shown
    assert {name for name in first | second if first.get(name) != second.get(name)} == set()
    assert shown[0] == shown[1]
    assert {"config.yaml", "metrics.jsonl", "model.safetensors", "privacy.json"} < first.keys()


def test_the_state_that_continues_a_run_differs_only_in_the_hash_of_its_data(tmp_path: Path) -> None:
    for name, population in zip("ab", neighbors(), strict=True):
        run(population, replace(FEDAVG, privacy=BLIND), tmp_path / name, rounds=2)
    first, second = (load(tmp_path / name / CHECKPOINT_FILE, torch.device("cpu")) for name in "ab")
    assert torch.equal(first.state.weights, second.state.weights)
    assert (first.metrics_bytes, len(first.clients)) == (second.metrics_bytes, 0)
    assert first.fingerprint != second.fingerprint


def test_a_private_run_records_the_public_fields_of_a_round_and_the_results_of_evaluations(
    tmp_path: Path, population: Population
) -> None:
    run(population, replace(FEDAVG, privacy=CENTRAL), tmp_path, rounds=2, evaluate_every=0)
    first, middle, last = read_events(tmp_path / "metrics.jsonl")
    assert middle.keys() == set(PUBLIC_FIELDS)
    assert last.keys() - middle.keys() == first.keys() - {"round"}
    assert "accuracy" in last
    assert (tmp_path / "per_user.csv").read_text().startswith("user,examples,accuracy\n7,6,")  # who is not trained on
    assert list(json.loads((tmp_path / "dataset_stats.json").read_text())["splits"]) == ["test"]


def test_unprotected_statistics_are_recorded_if_that_is_set(tmp_path: Path) -> None:
    population = make_population(6, 1, "training users")
    algorithm = replace(FEDAVG, privacy=CENTRAL, sampler=AllClients())
    run(population, algorithm, tmp_path / "private", rounds=1)
    run(population, algorithm, tmp_path / "open", rounds=1, unprotected_statistics=True)
    assert not (tmp_path / "private" / "per_user.csv").exists()
    assert not (tmp_path / "private" / "per_class.csv").exists(), "a class may be that of one user"
    assert not (tmp_path / "private" / "dataset_stats.json").exists()
    assert (tmp_path / "open" / "per_user.csv").exists()
    assert (tmp_path / "open" / "per_class.csv").exists()
    assert list(json.loads((tmp_path / "open" / "dataset_stats.json").read_text())["splits"]) == ["train", "test"]
    private, unprotected = (read_events(tmp_path / name / "metrics.jsonl")[1] for name in ("private", "open"))
    of_rounds = {
        "train_loss",
        "update_norm",
        "num_clients",
        "num_images",
        "max_client_batches",
        "bytes_up",
        "bytes_down",
    }
    of_users = {f"user_{name}" for name in ("q05", "q25", "q50", "q75", "q95", "worst_decile")}
    counts = {"num_users_scored", "num_users_unscorable", "num_users_without_test"}
    assert unprotected.keys() - private.keys() == of_rounds | of_users | counts | {"seconds"}
    assert {"user_mean", "user_weighted_mean"} < private.keys()


def test_rejected_clients_of_a_private_run_are_neither_named_nor_counted(
    population: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm = replace(FEDAVG, privacy=CENTRAL, sampler=AllClients(), loss=cast(Any, OverflowForRed()))
    result = run(population, algorithm, rounds=1)
    assert "rejected_clients" not in result.events[-1]
    assert capsys.readouterr().err == ""
    shown = run(population, algorithm, rounds=1, unprotected_statistics=True)
    assert shown.events[-1]["rejected_clients"]


def test_an_infinite_loss_of_a_client_does_not_end_a_private_run(population: Population) -> None:
    """The mean loss of the round is not finite, and the updates are: they are clipped."""
    algorithm = replace(FEDAVG, sampler=AllClients(), loss=cast(Any, InfiniteValue()))
    assert run(population, replace(algorithm, privacy=CENTRAL), rounds=2).events[-1]["round"] == 2
    with pytest.raises(DivergenceError):
        run(population, algorithm, rounds=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_split": "train"}, "eval_split=train scores the training images, which privacy protects"),
        ({"select_best_on": "train"}, "select_best_on=train scores the training images, which privacy protects"),
        ({"max_local_batches": 9}, "max_local_batches=9 ends the run at a round that depends on what users hold"),
    ],
)
def test_settings_that_would_show_the_training_users_are_refused(
    tmp_path: Path, population: Population, settings: dict[str, Any], message: str
) -> None:
    algorithm = replace(FEDAVG, privacy=CENTRAL)
    with pytest.raises(ValueError, match=f"{message}.*, or set unprotected_statistics=true"):
        run(population, algorithm, tmp_path / "run", rounds=1, **settings)
    assert not (tmp_path / "run").exists()
    run(population, algorithm, tmp_path / "run", rounds=1, unprotected_statistics=True, **settings)


def test_the_batches_of_a_private_run_are_unknown(population: Population) -> None:
    curve = run(population, replace(FEDAVG, privacy=CENTRAL), rounds=2).curve()
    assert curve.rounds_E.tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"does not record its local batches.*: train it with unprotected_statistics"):
        curve.batches_to(0.0)


def test_only_private_runs_withhold(population: Population) -> None:
    assert not RunConfig().withholds_statistics(FEDAVG)
    assert RunConfig().withholds_statistics(replace(FEDAVG, privacy=CENTRAL))
    assert not RunConfig(unprotected_statistics=True).withholds_statistics(replace(FEDAVG, privacy=CENTRAL))
