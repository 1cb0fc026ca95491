"""MobileNetV2 has torchvision's names, shapes and function, and the bottleneck of Hsu et al."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyeyes.models import build_model


def test_the_numbers_of_keys_and_parameters_are_those_of_torchvision() -> None:
    model = build_model("mobilenet_v2", 1000, norm="live")
    assert (len(model.state_dict()), sum(p.numel() for p in model.parameters())) == (314, 3_504_872)


@pytest.mark.fast_cases("features.0", "features.17", "classifier.1.weight")
@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("features.0.0.weight", (32, 3, 3, 3)),
        ("features.0.1.running_mean", (32,)),
        ("features.1.conv.0.0.weight", (32, 1, 3, 3)),
        ("features.1.conv.1.weight", (16, 32, 1, 1)),
        ("features.1.conv.2.num_batches_tracked", ()),
        ("features.2.conv.0.0.weight", (96, 16, 1, 1)),
        ("features.2.conv.1.0.weight", (96, 1, 3, 3)),
        ("features.2.conv.2.weight", (24, 96, 1, 1)),
        ("features.2.conv.3.bias", (24,)),
        ("features.17.conv.2.weight", (320, 960, 1, 1)),
        ("features.18.0.weight", (1280, 320, 1, 1)),
        ("features.18.1.weight", (1280,)),
        ("classifier.1.weight", (1000, 1280)),
        ("classifier.1.bias", (1000,)),
    ],
)
def test_names_and_shapes_are_those_of_torchvision(key: str, shape: tuple[int, ...]) -> None:
    assert build_model("mobilenet_v2", 1000, norm="live").state_dict()[key].shape == shape


def test_a_bottleneck_is_one_more_linear_layer() -> None:
    # Without: 1280 * 2028 + 2028. With: 1280 * 64 + 64, and 64 * 2028 + 2028.
    plain, narrow = (
        sum(p.numel() for p in build_model("mobilenet_v2", 2028, bottleneck=units).parameters()) for units in (0, 64)
    )
    assert plain - narrow == 1280 * 2028 - (1280 * 64 + 64 + 64 * 2028)


def test_group_norms_have_eight_groups() -> None:
    norms = [layer for layer in build_model("mobilenet_v2", 10).modules() if isinstance(layer, torch.nn.GroupNorm)]
    assert (len(norms), {norm.num_groups for norm in norms}) == (52, {8})


def test_training_uses_no_random_numbers() -> None:
    model = build_model("mobilenet_v2", 10).train()
    x = torch.ones(2, 3, 32, 32)
    assert torch.equal(model(x), model(x))


def test_outputs_equal_those_of_torchvision(torchvision: Any) -> None:
    theirs = torchvision.models.mobilenet_v2(num_classes=10).eval()
    ours = build_model("mobilenet_v2", 10, norm="live").eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(x), theirs(x))
