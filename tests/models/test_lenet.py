"""LeNet is the CIFAR network of Hsu et al. 2020."""

from __future__ import annotations

import pytest
import torch

from manyeyes.models import build_model


def num_parameters(width: int) -> int:
    return sum(p.numel() for p in build_model("lenet", 10, width=width).parameters())


def test_parameters_at_32_px() -> None:
    convolutions = (25 * 3 * 64 + 64) + (25 * 64 * 64 + 64)
    linears = (8 * 8 * 64 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10)
    assert num_parameters(width=64) == convolutions + linears == 1_756_426


def test_width_scales_every_layer() -> None:
    convolutions = (25 * 3 * 16 + 16) + (25 * 16 * 16 + 16)
    linears = (8 * 8 * 16 * 96 + 96) + (96 * 48 + 48) + (48 * 10 + 10)
    assert num_parameters(width=16) == convolutions + linears


@pytest.mark.parametrize("size", [4, 30, 33])
def test_odd_sizes_are_halved_rounding_down(size: int) -> None:
    assert build_model("lenet", 10, size=size, width=4)(torch.zeros(1, 3, size, size)).shape == (1, 10)


def test_images_too_small_to_halve_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="3 px: give 4 or more"):
        build_model("lenet", 10, size=3)
