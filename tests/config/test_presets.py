"""The options of each group."""

from __future__ import annotations

import pytest
from manyeyes.config.presets import DEFAULTS, OPTIONS

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.core.registry import names
from manyeyes.training.trackers import TRACKERS


def test_everything_that_has_a_name_is_an_option() -> None:
    assert list(OPTIONS["algorithm"]) == list(NAMED_ALGORITHMS)
    assert list(OPTIONS["model"]) == list(names("model"))
    assert list(OPTIONS["engine"]) == ["auto", *names("engine")]
    assert list(OPTIONS["track"]) == ["none", *TRACKERS]


@pytest.mark.parametrize("group", ["algorithm", "model", "engine"])
def test_an_option_knows_its_name(group: str) -> None:
    assert [node.name for node in OPTIONS[group].values()] == list(OPTIONS[group])


def test_every_group_has_a_default_that_it_knows() -> None:
    assert all(DEFAULTS[group] in options for group, options in OPTIONS.items())
