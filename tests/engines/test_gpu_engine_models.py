"""The fast engines with models of every kind: norms, several shapes, and batches that must be exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import MatchingLayers, NormLayers
from manyeyes.core.population import Population, SingleLabels
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.gpu_runs import AUGMENT, PEOPLE, assert_same, choose, far, game


def test_live_batch_norm_gets_exact_batches_and_its_statistics_are_averaged() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    assert_same("cuda_graphs", fedavg(batch_size=8, lr=0.05), module)


@pytest.mark.parametrize("name", ["fedbn", "fedrep"])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4)], ids=["batch", "group"])
def test_norms_and_their_statistics_follow_the_part_they_belong_to(norm: nn.Module, name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    algorithm = NAMED_ALGORITHMS[name](batch=8, lr=0.05, **({"head_epochs": 1} if name == "fedrep" else {}))
    algorithm = replace(algorithm, personal_layers=MatchingLayers(("4.*",))) if name == "fedrep" else algorithm
    assert_same("cuda_graphs", algorithm, module)
    moved, _, kept = game("cuda_graphs", algorithm, module)
    flat = FlatModel(module)
    theirs = flat.mask(
        (NormLayers() if name == "fedbn" else MatchingLayers(("4.*",))).parameter_names(module).__contains__
    )
    assert not moved[theirs].any()
    assert all(len(things["personal"]) == int(theirs.sum()) for things in kept.values())


@pytest.mark.parametrize("engine", ["cuda_graphs", "alone"])
@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_deep_models_with_every_norm(norm: str, engine: str) -> None:
    people = PEOPLE.filter(PEOPLE.owners(np.arange(len(PEOPLE))) < 6)  # batches of one have no variance
    module = build_model("mobilenet_v1", 5, norm=norm)
    algorithm = fedavg(batch_size=64, lr=0.01)
    wanted, _, _ = game(None, algorithm, module, people)
    found, _, _ = game(engine, algorithm, module, people)
    assert far(found, wanted) < 1e-3  # units near 0 fall to either side of a ReLU


@pytest.mark.parametrize("engine", ["reference", "multiprocess", "vmap", "cuda_graphs"])
def test_a_model_may_take_its_images_to_lie_in_plain_order(engine: str) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(576, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.fc(self.conv(images).view(len(images), -1))

    train(PEOPLE, Viewing(), fedavg(cohort_size=2, batch_size=8), rounds=1, test=PEOPLE, engine=engine)


class Centred(nn.Module):
    """Takes the mean image of the batch away: what padding would change, without a norm of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(400, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = torch.relu(self.conv(images))
        return self.fc((found - found.mean(0)).flatten(1))


def test_a_model_that_mixes_the_examples_of_a_batch_gets_exact_ones() -> None:
    assert_same("cuda_graphs", fedavg(batch_size=8, lr=0.05), Centred())
    with pytest.raises(ValueError, match="would count the padding"):
        choose("vmap", Centred(), augment=AUGMENT)


def test_images_that_are_not_square() -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (30, 6, 10, 3), np.uint8)
    people = Population.from_arrays(wide, SingleLabels(rng.integers(0, 5, 30), tuple("abcde")), np.arange(30) % 4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(180, 5))
    for engine in ("vmap", "cuda_graphs"):
        train(people, module, fedavg(cohort_size=2, batch_size=4), rounds=1, engine=engine)


def test_a_model_that_trains_in_part() -> None:
    module = build_model("lenet", 5, size=12, width=4)
    module.conv1.requires_grad_(False)
    assert_same("both", fedavg(batch_size=8, lr=0.05), module)
