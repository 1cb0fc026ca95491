"""Which layers a model has, and which of them train."""

from __future__ import annotations

import pytest
from torch import nn

from manyeyes.models import build_model, layers, set_trainable


def trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_layers_are_listed_in_order() -> None:
    assert [name for name, _ in layers(build_model("lenet", 10))] == ["conv1", "conv2", "fc1", "fc2", "fc3"]


def test_last_two_layers_of_landmarks_are_bottleneck_and_classifier() -> None:
    model = build_model("mobilenet_v2", 2028, bottleneck=64, trainable="last:2")
    assert trained(model) == {"bottleneck.weight", "bottleneck.bias", "classifier.1.weight", "classifier.1.bias"}


def test_all_layers_train_by_default() -> None:
    assert all(parameter.requires_grad for parameter in build_model("resnet18", 10).parameters())


def test_a_later_setting_replaces_an_earlier_one() -> None:
    model = build_model("lenet", 10, trainable="last:1")
    set_trainable(model, "all")
    set_trainable(model, "last:2")
    assert trained(model) == {"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}


@pytest.mark.parametrize("spec", ["", "first:2", "last:0", "last:-1", "last:two", "last:", "last:2 "])
def test_an_unknown_setting_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="give 'all' or 'last:n'"):
        set_trainable(build_model("lenet", 10), spec)


def test_more_layers_than_there_are_is_refused_and_nothing_changes() -> None:
    model = build_model("lenet", 10)
    with pytest.raises(ValueError, match="'last:6' and the model has 5 layers: give fewer"):
        set_trainable(model, "last:6")
    assert len(trained(model)) == 10
