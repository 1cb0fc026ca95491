"""Personal layers by name."""

from __future__ import annotations

import pytest

from manyeyes.parts import Layers


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (("fc.*",), {"fc.weight", "fc.bias"}),
        (("*.bias",), {"conv1.bias", "fc.bias"}),
        (("conv?.*", "fc.bias"), {"conv1.weight", "conv1.bias", "fc.bias"}),
        (("*",), {"conv1.weight", "conv1.bias", "fc.weight", "fc.bias"}),
        (("FC.*",), set()),
    ],
)
def test_keeps_the_layers_that_match_any_pattern(patterns: tuple[str, ...], kept: set[str]) -> None:
    names = ["conv1.weight", "conv1.bias", "fc.weight", "fc.bias"]
    assert {name for name in names if Layers(patterns).keeps(name)} == kept


def test_a_lone_pattern_does_not_keep_every_layer() -> None:
    try:
        layers = Layers("fc.*")
    except (TypeError, ValueError):
        return
    assert not layers.keeps("conv1.weight")
