"""A model is split where its trainable layers begin, and the head gives the outputs of the whole model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.models.build import build_model
from manyeyes.models.features import FeatureSplit, split_at_features
from manyeyes.models.flat import FlatModel, with_seeded_dropout

SIZE = 8


class Residual(nn.Module):
    """A block whose first layer reaches the last one on two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(x), inplace=True))


class Network(nn.Module):
    """A network as they are written: functions between layers, a dropout before the classifier."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.norm, self.block = nn.Conv2d(3, 4, 3, padding=1), norm, Residual()
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(4, 5))

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(self.block(x), 1).flatten(1))


class UsesWeightEarlier(Network):
    """The classifier's bias is added to what the classifier gets."""

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.stem(images).mean((2, 3)) + cast(nn.Linear, self.classifier[1]).bias.mean())


class Noisy(Network):
    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        return self.classifier((x + torch.randn_like(x)).mean((2, 3)))


def split(module: nn.Module, trainable: str) -> FeatureSplit | str:
    module.requires_grad_(False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(tuple(trainable.split())))
    return split_at_features(FlatModel(with_seeded_dropout(module)), SIZE, SIZE)


@pytest.mark.parametrize(
    ("trainable", "layer", "shape"),
    [
        ("classifier", "classifier.1", (4,)),
        ("block.second classifier", "block", (4, SIZE, SIZE)),  # the sum needs what was before the block, too
        ("block classifier", "block", (4, SIZE, SIZE)),
    ],
)
def test_a_model_is_split_at_the_last_layer_that_decides_everything_after_it(
    trainable: str, layer: str, shape: tuple[int, ...]
) -> None:
    result = split(Network(nn.GroupNorm(2, 4)), trainable)
    assert isinstance(result, FeatureSplit) and (result.layer, result.feature_shape) == (layer, shape)


@pytest.mark.parametrize("trainable", ["classifier", "block.second classifier"])
def test_the_head_has_the_gradient_of_the_whole_model(trainable: str) -> None:
    result = split(Network(nn.GroupNorm(2, 4), dropout=0.5), trainable)
    assert isinstance(result, FeatureSplit)
    images, seed = torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)), torch.tensor(7)
    gradients = []
    for model, inputs in ((result.model, images), (result.head, result.features(images))):
        theta = model.read().requires_grad_()
        trained = FlatModel(copy.deepcopy(model.module).train())
        loss = trained(theta, torch.empty(0), inputs, seed).square().sum()
        gradients.append(torch.autograd.grad(loss, theta)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


def test_dropout_before_the_classifier_is_part_of_the_head() -> None:
    result = split(Network(nn.GroupNorm(2, 4), dropout=0.5), "classifier")
    assert isinstance(result, FeatureSplit) and result.layer == "classifier"


def test_live_norms_are_part_of_the_head_because_their_statistics_change() -> None:
    result = split(Network(nn.BatchNorm2d(4)), "classifier")
    assert isinstance(result, FeatureSplit) and result.layer == "norm"


def test_a_model_of_grey_images_is_split() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3).requires_grad_(False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    assert isinstance(split_at_features(FlatModel(model), SIZE, SIZE, channels=1), FeatureSplit)


def test_frozen_norms_are_computed_once() -> None:
    model = build_model("mobilenet_v2", 5, size=SIZE, norm="frozen", trainable="last:1")
    assert isinstance(split_at_features(FlatModel(model), SIZE, SIZE), FeatureSplit)


@pytest.mark.parametrize(
    "make",
    [
        lambda: UsesWeightEarlier(nn.GroupNorm(2, 4)),
        lambda: Noisy(nn.GroupNorm(2, 4)),
        lambda: Network(nn.Dropout(0.5)),
    ],
)
def test_a_model_whose_features_change_is_not_split(make: Callable[[], nn.Module]) -> None:
    assert "this model: what is before its trainable layers" in str(split(make(), "classifier"))


def test_a_model_of_which_all_layers_train_is_not_split() -> None:
    assert split(Network(nn.GroupNorm(2, 4)), "stem norm block classifier") == "a model of which all layers train"
