"""Personal layers: which parameters and buffers they select."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from manyeyes.components import HeadLayers, MatchingLayers, NormLayers
from manyeyes.core.registry import names
from manyeyes.models import build_model


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("fc.*",), {"fc.weight", "fc.bias"}),
        (("*.bias",), {"conv1.bias", "fc.bias"}),
        (("conv?.*", "fc.bias"), {"conv1.weight", "conv1.bias", "fc.bias"}),
        (("*",), {"conv1.weight", "conv1.bias", "fc.weight", "fc.bias"}),
    ],
)
def test_layers_that_match_any_pattern_are_personal(patterns: tuple[str, ...], expected: set[str]) -> None:
    module = nn.Module()
    module.conv1, module.fc = nn.Conv2d(3, 2, 1), nn.Linear(2, 2)
    assert MatchingLayers(patterns).parameter_names(module) == expected


@pytest.mark.parametrize("patterns", [("FC.*",), ("fc.*", "conv2.*"), ("fc",)])
def test_a_pattern_that_matches_nothing_is_refused(patterns: tuple[str, ...]) -> None:
    module = nn.Module()
    module.conv1, module.fc = nn.Conv2d(3, 2, 1), nn.Linear(2, 2)
    with pytest.raises(ValueError, match=rf"no layer of the model matches '{patterns[-1]}'; .* conv1.weight"):
        MatchingLayers(patterns).parameter_names(module)


def test_a_string_instead_of_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="give a list of name patterns"):
        MatchingLayers("fc.*")  # type: ignore[arg-type]


def test_patterns_in_a_list_equal_those_in_a_tuple() -> None:
    listed = MatchingLayers(["fc.*"])  # type: ignore[arg-type]
    assert {listed, MatchingLayers(("fc.*",))} == {listed}  # engines cache masks by the component


HEADS: dict[str, list[tuple[str, ...]]] = {  # as FedPer's baseline counts layers
    "resnet34": [
        ("fc",),
        ("fc", "layer4.2"),
        ("fc", "layer4.2", "layer4.1"),
        ("fc", "layer4.2", "layer4.1", "layer4.0"),
    ],
    "resnet18": [
        ("fc",),
        ("fc", "layer4.1"),
        ("fc", "layer4.1", "layer4.0"),
        ("fc", "layer4.1", "layer4.0", "layer3.1"),
    ],
    "mobilenet_v1": [("fc",), ("fc", "blocks.12"), ("fc", "blocks.12", "blocks.11")],
    "mobilenet_v2": [("classifier",), ("classifier", "features.18"), ("classifier", "features.18", "features.17")],
    "lenet": [("fc3",), ("fc3", "fc2"), ("fc3", "fc2", "fc1")],
    "linear": [("fc",)],
}


@pytest.mark.fast_cases("lenet", "mobilenet")
@pytest.mark.parametrize("norm", ["live", "group"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_has_all_parameters_and_statistics_of_the_last_blocks(name: str, norm: str) -> None:
    module = build_model(name, 5, norm=norm)
    for num_layers, blocks in enumerate(HEADS[name], 1):
        actual = HeadLayers(num_layers).parameter_names(module)
        assert actual == {key for key in module.state_dict() if key.startswith(tuple(f"{block}." for block in blocks))}


def test_a_bottleneck_is_a_layer_of_the_head() -> None:
    actual = HeadLayers(2).parameter_names(build_model("mobilenet_v2", 5, bottleneck=8))
    assert actual == {"classifier.1.weight", "classifier.1.bias", "bottleneck.weight", "bottleneck.bias"}


def test_every_model_has_a_head() -> None:
    assert all(HeadLayers(1).parameter_names(build_model(name, 5)) for name in names("model"))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), r"personal_layers\.num_layers=2, and the head of Linear has 0 layers \(\)"),
        (build_model("linear", 5), r"personal_layers\.num_layers=2, and the head of Linear has 1 layers \(fc\)"),
    ],
)
def test_a_missing_or_short_head_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadLayers(2).parameter_names(module)


def module_with_head(head: Any) -> nn.Module:
    module = nn.Module()
    module.conv, module.fc, module.scale = nn.Conv2d(3, 2, 1), nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    module.head = head
    return module


def test_a_head_may_include_a_bare_parameter() -> None:
    assert HeadLayers(2).parameter_names(module_with_head(("fc", "scale"))) == {"fc.weight", "fc.bias", "scale"}


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (("fc", "cnov"), r"Module\.head lists 'cnov', and the model has no layer of that name"),
    ],
)
def test_a_head_that_does_not_exist_is_refused(head: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadLayers(2).parameter_names(module_with_head(head))


def test_norm_layers_are_all_norms_with_their_statistics() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    batch_norm = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert NormLayers().parameter_names(module) == batch_norm | {"2.weight", "2.bias"}


@pytest.mark.parametrize("norm", ["live", "group", "frozen"])
def test_norms_of_a_resnet(norm: str) -> None:
    module = build_model("resnet18", 5, norm=norm)
    assert {
        name for name in module.state_dict() if "bn" in name or "downsample.1" in name
    } == NormLayers().parameter_names(module)
