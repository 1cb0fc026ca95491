"""The help: every group, option and setting."""

from __future__ import annotations

from dataclasses import fields

import pytest
from manyeyes.config.presets import DEFAULTS, OPTIONS
from manyeyes.config.schema import AlgorithmConfig

from manyeyes.config.errors import setting_names
from manyeyes.config.help import run_help

LINES = [line.strip() for line in run_help().splitlines()]
GROUPS = {
    "aggregate",
    "compress",
    "data",
    "model",
    "algorithm",
    "augment",
    "privacy",
    "engine",
    "track",
    "algorithm.schedule",
    "algorithm.server_schedule",
}


def test_every_setting_is_listed_with_a_meaning() -> None:
    lines = [line for line in LINES[LINES.index("Settings:") + 1 :] if not line.endswith(":")]
    listed = {line.partition("=")[0]: line.split(maxsplit=1) for line in lines}
    assert listed.keys() == set(setting_names()) - GROUPS
    assert all(len(words) == 2 for words in listed.values())


def test_every_option_is_listed_with_its_default() -> None:
    assert [f"{group}={'|'.join(OPTIONS[group])}   ({DEFAULTS[group]})" in LINES for group in OPTIONS] == [True] * 8


@pytest.mark.parametrize(
    "setting",
    ["seed=0 ", "algorithm.epochs=1 ", "algorithm.lr=0.01 ", "algorithm.keep=false ", "folder='' ", "track.to=[] "],
)
def test_defaults_are_written_as_a_person_would(setting: str) -> None:
    assert any(line.startswith(setting) for line in LINES)


def test_meanings_are_those_of_the_settings() -> None:
    for one in fields(AlgorithmConfig):
        assert one.name in ("schedule", "server_schedule") or any(
            line.startswith(f"algorithm.{one.name}=") and line.endswith(one.metadata["meaning"]) for line in LINES
        )
