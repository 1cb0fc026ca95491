"""A module that does not fit the data is refused, and its traits are measured; trying it changes nothing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import names
from manyeyes.models import NORMS, build_model, layers
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from manyeyes.models.inspection import ModuleTraits, check_fits, probe

PLAIN = ModuleTraits(uses_rng=False, mixes_batch=False, trains_on_one=True, mutated_buffer="")


class WithOutput(nn.Module):
    """Returns a function of the logits."""

    def __init__(self, make: Any, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.make, self.layer = make, layer or nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


class UsingGenerators(nn.Module):
    """Uses every global generator, and counts its calls in a buffer and in an attribute."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.python_calls = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 5)), 0
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.python_calls += 1
        return self.layer(x) + torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002


class ModeDependent(nn.Module):
    """Returns another number of outputs when it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) if self.training else (self.layer(x), x)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", names("model"))
def test_built_in_models_fit(name: str, norm: str) -> None:
    check_fits(build_model(name, 7, norm=norm, size=32), 32, 32, 7)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (WithOutput(lambda y: (y, y)), r"returns a tuple of 2 in training mode: return one .* logits \[N, 5\]"),
        (WithOutput(lambda y: {"out": y}), "returns a dict of 1 in training mode"),
        (WithOutput(lambda y: None), "returns a NoneType in training mode"),
        (WithOutput(lambda y: y.argmax(1)), "returns int64 numbers in training mode: return one floating-point Tensor"),
        (WithOutput(lambda y: y[:, 0]), r"returns shape \[2\] for 2 images in training mode: return one"),
        (WithOutput(lambda y: y[..., None]), r"returns shape \[2, 5, 1\] for 2 images"),
        (WithOutput(lambda y: y[:1]), r"returns shape \[1, 5\] for 2 images"),
        (
            WithOutput(lambda y: y[:, :1]),
            "the model has 1 output and the data has 5 classes: give its last layer 5 out",
        ),
        (WithOutput(lambda y: torch.cat([y, y], 1)), "the model has 10 outputs and the data has 5 classes"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 5)), "expects 1 input channel and the .* 3"),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(144, 5)), "expects 4 input channels and the .* 3"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(100, 5)),
            r"fails in training mode on float32 images \[2, 3, 8, 8\] \(R",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).double(), "fails in training mode .* dtype"),
        (
            nn.Sequential(nn.Flatten(), nn.LazyLinear(5)),
            r"1\.weight has no shape yet, .* on a batch of images \[N, 3, 8",
        ),
        (nn.Sequential(nn.LazyBatchNorm2d(affine=False), nn.Flatten(), nn.Linear(192, 5)), "0.running_mean has no sh"),
        (ModeDependent(), "returns a tuple of 2 in evaluation mode"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(module: nn.Module, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        check_fits(module, 8, 8, 5)
    assert "\n" not in str(error.value)


def test_a_convolution_of_other_channels_inside_the_model_is_not_named() -> None:
    inner = nn.Conv2d(1, 1, 3, padding=1)
    module = WithOutput(lambda y: y, nn.Sequential(nn.AvgPool3d((3, 1, 1)), inner, nn.Flatten(), nn.Linear(64, 5)))
    check_fits(module, 8, 8, 5)
    with pytest.raises(ValueError, match="fails in training mode"):
        check_fits(module, 9, 9, 5)


def test_a_model_that_is_not_evaluated_is_only_tried_in_training_mode() -> None:
    check_fits(ModeDependent(), 8, 8, 5, evaluated=False)


def test_trying_a_model_changes_neither_it_nor_a_generator() -> None:
    module = UsingGenerators().eval()
    module.layer[0].train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    check_fits(module, 8, 8, 5)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]  # noqa: NPY002
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module.python_calls == 0
    assert [layer.training for layer in (module, module.layer[0], module.layer[2])] == [False, True, False]
    assert not any(layer._forward_pre_hooks for layer in module.modules())


def test_layers_are_listed_in_order() -> None:
    assert [name for name, _ in layers(build_model("lenet", 10))] == ["conv1", "conv2", "fc1", "fc2", "fc3"]


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


@pytest.mark.parametrize(("norm", "live"), [("live", True), ("frozen", False), ("group", False)])
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
    ("norm", "size", "trains_on_one"), [("live", 32, False), ("live", 64, True), ("group", 32, True)]
)
def test_live_batch_norm_needs_several_values_of_each_channel(norm: str, size: int, trains_on_one: bool) -> None:
    model = build_model("mobilenet_v1", 10, norm=norm, size=size)  # 32 pixels become one at the end
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rng_state, training = torch.get_rng_state(), model.training
    assert probe(FlatModel(model), size, size).trains_on_one is trains_on_one
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng_state) and model.training is training
