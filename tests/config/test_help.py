"""The help: every group, choice and setting, and the page of the documentation that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import settings_page
from manyeyes.config.groups import GROUPS, nested_options, setting_names
from manyeyes.config.help import run_help

LINES = [line.strip() for line in run_help().splitlines()]
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def _settings() -> dict[str, list[str]]:
    """Return the listed settings, each with its line split into the default and the help."""
    lines = LINES[LINES.index("Settings of the run:") + 1 :]
    return {line.partition("=")[0]: line.split(maxsplit=1) for line in lines if line and not line.endswith(":")}


def test_every_setting_is_listed_with_a_help_text() -> None:
    components = {
        f"{group.prefix(choice)}.{option.name}"
        for group in GROUPS.values()
        for choice in group.choices()
        for option in group.options(choice)
        if nested_options(option)
    }
    assert _settings().keys() == set(setting_names()) - GROUPS.keys() - {"preprocess"} - components
    assert all(len(parts) == 2 for parts in _settings().values())


def test_every_group_is_listed_with_its_choices_and_default() -> None:
    models = "lenet|efficientnet_lite0|linear|mobilenet_v1|mobilenet_v2|resnet18|resnet34"
    libraries = "timm:NAME, torchvision:NAME, transformers:NAME"
    assert f"model={models}   (lenet; also {libraries})" in LINES
    assert "correction=proximal|scaffold|mimelite|feddyn|none   (default: the algorithm's)" in LINES
    assert "trackers=[tensorboard|mlflow|wandb]   ([])" in LINES
    for group in GROUPS.values():
        choices = "|".join(group.choices())
        assert any(line.startswith((f"{group.name}={choices} ", f"{group.name}=[{choices}] ")) for line in LINES)


@pytest.mark.parametrize(
    "setting",
    [
        "seed=0 ",
        "algorithm.epochs=1 ",
        "algorithm.lr=0.01 ",
        "algorithm.persist_state=false ",
        "folder='' ",
        "preprocess.scale=null ",
        "preprocess.ratio=[0.75,1.3333333333333333] ",
        "data.path=... ",
        "callbacks.early_stopping.patience=",
    ],
)
def test_defaults_are_written_as_they_are_typed(setting: str) -> None:
    assert any(line.startswith(setting) for line in LINES)


def test_help_of_an_override_is_that_of_its_choice() -> None:
    text = run_help(["server_optimizer=adam", "rounds=3"])
    assert text.startswith("server_optimizer=adam: ")
    assert "server_optimizer.tau=0.001" in text
    assert "momentum" not in text


def test_help_of_an_unknown_choice_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Unknown server_optimizer 'adan' \(did you mean 'adam'\?\)"):
        run_help(["server_optimizer=adan"])


def test_the_reference_page_has_every_setting_and_choice() -> None:
    text = REFERENCE.read_text()
    assert text == settings_page.page(), "docs/reference.md is outdated: run make reference"
    lines = [line for line in LINES[LINES.index("Settings of the run:") :] if line and not line.endswith(":")]
    assert [line for line in lines if f"| `{line.split(maxsplit=1)[0]}` |" not in text] == []
