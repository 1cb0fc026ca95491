"""MobileNet-v1 is that of Howard et al. 2017, and its head can be chosen block by block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manyeyes.models import build_model, layers


def test_the_number_of_parameters_is_that_of_other_implementations() -> None:
    assert sum(p.numel() for p in build_model("mobilenet_v1", 1000, norm="live").parameters()) == 4_231_976


def test_channels_and_sizes_follow_table_1_of_the_paper() -> None:
    model = build_model("mobilenet_v1", 10)
    seen: list[tuple[int, int]] = []

    def record(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((output.shape[1], output.shape[2]))

    for block in model.get_submodule("blocks").children():
        block.register_forward_hook(record)
    model(torch.zeros(1, 3, 224, 224))
    expected = [(64, 112), (128, 56), (128, 56), (256, 28), (256, 28), *[(512, 14)] * 6, (1024, 7), (1024, 7)]
    assert seen == expected


def test_layers_end_with_the_last_block_and_the_classifier() -> None:
    names = [name for name, _ in layers(build_model("mobilenet_v1", 10))]
    last = "blocks.12"
    assert names[-5:] == [f"{last}.depthwise", f"{last}.bn1", f"{last}.pointwise", f"{last}.bn2", "fc"]
