"""ResNet has torchvision's names, shapes and function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyeyes.models import build_model

# Counts and totals as torchvision has them for 1,000 classes.
TORCHVISION = {"resnet18": (122, 11_689_512), "resnet34": (218, 21_797_672)}


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_numbers_of_keys_and_parameters_are_those_of_torchvision(name: str) -> None:
    model = build_model(name, 1000, norm="live")
    assert (len(model.state_dict()), sum(p.numel() for p in model.parameters())) == TORCHVISION[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("conv1.weight", (64, 3, 7, 7)),
        ("bn1.running_var", (64,)),
        ("bn1.num_batches_tracked", ()),
        ("layer1.1.conv2.weight", (64, 64, 3, 3)),
        ("layer2.0.conv1.weight", (128, 64, 3, 3)),
        ("layer2.0.downsample.0.weight", (128, 64, 1, 1)),
        ("layer2.0.downsample.1.running_mean", (128,)),
        ("layer3.1.bn2.bias", (256,)),
        ("layer4.0.downsample.1.weight", (512,)),
        ("layer4.1.conv1.weight", (512, 512, 3, 3)),
        ("fc.weight", (1000, 512)),
        ("fc.bias", (1000,)),
    ],
)
def test_names_and_shapes_are_those_of_torchvision(key: str, shape: tuple[int, ...]) -> None:
    assert build_model("resnet18", 1000, norm="live").state_dict()[key].shape == shape


def test_the_first_stage_has_no_downsample() -> None:
    assert not any(
        key.startswith("layer1.0.downsample") for key in build_model("resnet34", 10, norm="live").state_dict()
    )


def test_resnet34_has_stages_of_3_4_6_3_blocks() -> None:
    model = build_model("resnet34", 10)
    assert [len(list(model.get_submodule(f"layer{n}").children())) for n in (1, 2, 3, 4)] == [3, 4, 6, 3]


def test_convolutions_are_initialized_with_the_variance_of_fan_out() -> None:
    # layer4.1.conv2: 512 outputs of 3x3, so the variance is 2 / (512 * 9).
    weight = build_model("resnet18", 10).get_parameter("layer4.1.conv2.weight")
    assert weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_outputs_equal_those_of_torchvision(torchvision: Any, name: str) -> None:
    theirs = getattr(torchvision.models, name)(num_classes=10).eval()
    ours = build_model(name, 10, norm="live").eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(x), theirs(x))
