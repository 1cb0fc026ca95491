"""The traits of a module are measured by trying it, whatever its layers are called."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models import build_model
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import ModuleTraits, probe

PLAIN = ModuleTraits(uses_rng=False, mixes_batch=False, trains_on_one=True, mutated_buffer="")


class MinusBatchMean(nn.Module):
    """Subtracts the mean image of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class FunctionalBatchNorm(nn.Module):
    """Live batch norm without a layer of that name."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=self.training)


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, training=self.training)


def with_head(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))


@pytest.mark.parametrize("name", ["linear", "lenet", "resnet18", "mobilenet_v1", "mobilenet_v2"])
def test_built_in_models_without_live_batch_norm_are_plain(name: str) -> None:
    assert probe(FlatModel(build_model(name, 10, size=32)), 32, 32) == PLAIN


@pytest.mark.parametrize(("norm", "live"), [("batch", True), ("frozen_batch", False), ("group", False)])
def test_only_batch_norm_is_live(norm: str, live: bool) -> None:
    assert probe(FlatModel(build_model("mobilenet_v2", 10, norm=norm)), 64, 64).mixes_batch is live


@pytest.mark.parametrize(
    "layer",
    [
        MinusBatchMean(),
        FunctionalBatchNorm(),
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_a_module_that_mixes_the_examples_of_a_batch(layer: nn.Module) -> None:
    assert probe(FlatModel(with_head(layer)), 6, 10).mixes_batch


@pytest.mark.parametrize("layer", [nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.LayerNorm([3, 6, 10]), nn.Dropout(0.5)])
def test_a_module_that_keeps_examples_apart(layer: nn.Module) -> None:
    assert probe(FlatModel(with_seeded_dropout(with_head(layer))), 6, 10) == PLAIN


def test_a_module_that_uses_a_global_generator() -> None:
    assert probe(FlatModel(with_head(FunctionalDropout())), 8, 8).uses_rng


def test_a_module_with_a_buffer_that_changes() -> None:
    module = nn.Sequential(nn.Flatten(), torch.nn.utils.parametrizations.spectral_norm(nn.Linear(192, 4)))
    assert probe(FlatModel(module), 8, 8).mutated_buffer == "1.parametrizations.weight.0._u"


@pytest.mark.parametrize(
    ("norm", "size", "trains_on_one"), [("batch", 32, False), ("batch", 64, True), ("group", 32, True)]
)
def test_live_batch_norm_needs_several_values_of_each_channel(norm: str, size: int, trains_on_one: bool) -> None:
    model = build_model("mobilenet_v1", 10, norm=norm, size=size)  # 32 pixels become one at the end
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rng_state, training = torch.get_rng_state(), model.training
    assert probe(FlatModel(model), size, size).trains_on_one is trains_on_one
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng_state) and model.training is training
