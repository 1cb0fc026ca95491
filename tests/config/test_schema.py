"""Every setting has a meaning, and no two of them share a default."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from manyeyes.config.schema import AlgorithmConfig, Config

from manyeyes.config import schema

NODES = [node for node in vars(schema).values() if is_dataclass(node)]


@pytest.mark.parametrize("node", NODES)
def test_every_setting_has_a_meaning(node: Any) -> None:
    assert [one.name for one in fields(node) if not one.metadata.get("meaning")] == []


def test_lists_and_nested_settings_are_made_anew() -> None:
    one, other = AlgorithmConfig(), AlgorithmConfig()
    one.layers.append("fc.*")
    one.schedule.warmup = 3
    assert (other.layers, other.schedule.warmup) == ([], 0)
    assert Config().model is not Config().model
