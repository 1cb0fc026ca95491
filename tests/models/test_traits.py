"""What a module does when it trains is found out by trying it, whatever its layers are called."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models import build_model
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import ModuleTraits, probe

GOOD = ModuleTraits(uses_rng=False, mixes_batch=False, trains_on_one=True, mutated_buffer="")


class Centred(nn.Module):
    """Takes the mean image of the batch away."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Functional(nn.Module):
    """Live batch norm without a layer of that name."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=self.training)


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, training=self.training)


def answering(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))


@pytest.mark.parametrize("name", ["linear", "lenet", "resnet18", "mobilenet_v1", "mobilenet_v2"])
def test_our_models_without_live_batch_norm_have_none(name: str) -> None:
    assert probe(FlatModel(build_model(name, 10, size=32)), 32, 32) == GOOD


@pytest.mark.parametrize(("norm", "live"), [("batch", True), ("frozen_batch", False), ("group", False)])
def test_only_batch_norm_is_live(norm: str, live: bool) -> None:
    assert probe(FlatModel(build_model("mobilenet_v2", 10, norm=norm)), 64, 64).mixes_batch is live


@pytest.mark.parametrize(
    "layer",
    [
        Centred(),
        Functional(),
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_a_module_that_mixes_the_examples_of_a_batch(layer: nn.Module) -> None:
    assert probe(FlatModel(answering(layer)), 6, 10).mixes_batch


@pytest.mark.parametrize("layer", [nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.LayerNorm([3, 6, 10]), nn.Dropout(0.5)])
def test_a_module_that_keeps_examples_apart(layer: nn.Module) -> None:
    assert probe(FlatModel(with_seeded_dropout(answering(layer))), 6, 10) == GOOD


def test_a_module_that_draws_random_numbers_of_its_own() -> None:
    assert probe(FlatModel(answering(Dropping())), 8, 8).uses_rng


def test_a_module_that_remembers_more_than_its_norms() -> None:
    module = nn.Sequential(nn.Flatten(), torch.nn.utils.parametrizations.spectral_norm(nn.Linear(192, 4)))
    assert probe(FlatModel(module), 8, 8).mutated_buffer == "1.parametrizations.weight.0._u"


@pytest.mark.parametrize(("norm", "size", "can"), [("batch", 32, False), ("batch", 64, True), ("group", 32, True)])
def test_live_batch_norm_wants_several_numbers_of_each_channel(norm: str, size: int, can: bool) -> None:
    model = build_model("mobilenet_v1", 10, norm=norm, size=size)  # 32 pixels are one at the end
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chance, training = torch.get_rng_state(), model.training
    assert probe(FlatModel(model), size, size).trains_on_one is can
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance) and model.training is training
