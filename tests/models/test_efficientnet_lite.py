"""EfficientNet-Lite0 has timm's names, shapes and function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from manyeyes.models import build_model
from manyeyes.models.architectures.efficientnet_lite import SameConv2d


@pytest.mark.slow
def test_outputs_equal_those_of_timm(timm: Any) -> None:
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=10).eval()
    ours = build_model("efficientnet_lite0", 10, norm="live").eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 65, 98, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.slow
def test_gradients_of_training_equal_those_of_timm(timm: Any) -> None:
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=10, drop_rate=0.0, drop_path_rate=0.0).train()
    ours = build_model("efficientnet_lite0", 10, norm="live").train()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for model in (ours, theirs):
        model(x).square().mean().backward()
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in theirs.named_parameters()]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_parameters_are_those_of_the_published_model() -> None:
    assert sum(p.numel() for p in build_model("efficientnet_lite0", 1000, norm="live").parameters()) == 4_652_008


@pytest.mark.parametrize(("size", "padding"), [(5, (1, 1)), (6, (0, 1)), (7, (1, 1))])
def test_padding_with_a_stride_is_that_of_tensorflow(size: int, padding: tuple[int, int]) -> None:
    # "same": ceil(size / 2) outputs; an odd pixel of padding comes after the image
    conv = SameConv2d(1, 1, 3, stride=2, bias=False)
    nn.init.ones_(conv.weight)
    counts = conv(torch.ones(1, 1, size, size))[0, 0]
    first, last = 3 - padding[0], 3 - padding[1]
    assert (counts.shape, counts[0, 0].item(), counts[-1, -1].item()) == ((-(-size // 2),) * 2, first**2, last**2)


def test_inner_names_are_those_of_timm() -> None:
    keys = build_model("efficientnet_lite0", 3, norm="live").state_dict().keys()
    assert {"conv_stem.weight", "blocks.0.0.conv_dw.weight", "blocks.6.0.conv_pwl.weight", "bn2.running_var"} <= keys
