"""The GPU engines with models of every kind: norms, several shapes, and batches that must be exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import MatchingLayers, NormLayers
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import PERSONAL_WEIGHTS
from manyeyes.engines.select import choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.engine_runs import make_setup, relative_error
from tests.engines.gpu_runs import AUGMENT, POPULATION, assert_equals_reference, train_on


def personal_algorithm(name: str) -> Algorithm:
    """Return FedBN, or FedRep with the last layer as its personal head."""
    algorithm = NAMED_ALGORITHMS[name](batch_size=8, lr=0.05, **({"head_epochs": 1} if name == "fedrep" else {}))
    return replace(algorithm, personal_layers=MatchingLayers(("4.*",))) if name == "fedrep" else algorithm


def test_live_batch_norm_gets_exact_batches_and_its_statistics_are_averaged() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    assert_equals_reference("cuda_graphs", fedavg(batch_size=8, lr=0.05), module)


@pytest.mark.parametrize("name", ["fedbn", pytest.param("fedrep", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), pytest.param(nn.GroupNorm(2, 4), marks=pytest.mark.slow)], ids=["batch", "group"]
)
def test_norms_and_their_statistics_follow_their_layers(norm: nn.Module, name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    algorithm = personal_algorithm(name)
    assert_equals_reference("cuda_graphs", algorithm, module)
    update, _, client_states = train_on("cuda_graphs", algorithm, module)
    layers = NormLayers() if name == "fedbn" else MatchingLayers(("4.*",))
    is_personal = FlatModel(module).mask(layers.parameter_names(module).__contains__)
    assert not update[is_personal].any()
    assert all(len(state[PERSONAL_WEIGHTS]) == int(is_personal.sum()) for state in client_states.values())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cuda_graphs", "single"])
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_deep_models_with_every_norm(norm: str, engine: str) -> None:
    population = POPULATION.filter(POPULATION.owners(np.arange(len(POPULATION))) < 6)  # one image has no variance
    module = build_model("mobilenet_v1", 5, norm=norm)
    algorithm = fedavg(batch_size=64, lr=0.01)
    expected, _, _ = train_on("reference", algorithm, module, population, num_rounds=1)
    actual, _, _ = train_on(engine, algorithm, module, population, num_rounds=1)
    assert relative_error(actual, expected) < 1e-3  # a unit near 0 may fall to either side of a ReLU


class Viewing(nn.Module):
    """Fails unless its images are contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(576, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.conv(images).view(len(images), -1))


@pytest.mark.parametrize("engine", ["reference", "multiprocess", "vmap", "cuda_graphs"])
def test_models_get_contiguous_images(engine: str) -> None:
    train(POPULATION, Viewing(), fedavg(cohort_size=2, batch_size=8), rounds=1, test=POPULATION, engine=engine)


class Centering(nn.Module):
    """Subtracts the mean image of the batch, which padding would change, without a norm of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(400, 5)

    def forward(self, images: Tensor) -> Tensor:
        activations = torch.relu(self.conv(images))
        return self.fc((activations - activations.mean(0)).flatten(1))


def test_a_model_that_mixes_the_examples_of_a_batch_gets_exact_batches() -> None:
    algorithm = fedavg(batch_size=8, lr=0.05)
    assert_equals_reference("cuda_graphs", algorithm, Centering())
    with pytest.raises(ValueError, match="engine=vmap does not support a model that mixes the examples of a batch"):
        choose_engine(algorithm, make_setup(Centering(), POPULATION, AUGMENT, engine="vmap"))


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_images_that_are_not_square(engine: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 6, 10, 3), np.uint8)
    labels = SingleLabels(rng.integers(0, 5, 30), tuple("abcde"))
    population = Population.from_arrays(images, labels, np.arange(30) % 4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(180, 5))
    train(population, module, fedavg(cohort_size=2, batch_size=4), rounds=1, engine=engine)


def test_a_model_with_frozen_layers() -> None:
    module = build_model("lenet", 5, size=12, width=4)
    module.get_submodule("conv1").requires_grad_(False)
    assert_equals_reference("both", fedavg(batch_size=8, lr=0.05), module)
