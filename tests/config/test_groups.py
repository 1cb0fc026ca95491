"""The groups of settings: their choices, and the options of every choice."""

from __future__ import annotations

import pytest

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.config.compose import compose_config
from manyeyes.config.groups import (
    GROUPS,
    Group,
    engine_options,
    nested_options,
    preprocess_options,
    run_options,
    setting_names,
)
from manyeyes.core.algorithm import SLOTS
from manyeyes.core.registry import Option, names
from manyeyes.data.registry import DATASETS

CHOICES = [(group, choice) for group in GROUPS.values() for choice in group.choices()]


def test_everything_with_a_name_can_be_chosen() -> None:
    assert GROUPS["algorithm"].choices() == tuple(NAMED_ALGORITHMS)
    assert GROUPS["data"].choices() == ("synthetic", "store", *DATASETS)
    assert GROUPS["engine"].choices() == ("auto", *names("engine"))
    assert GROUPS["model"].choices()[0] == "lenet" and set(GROUPS["model"].choices()) == set(names("model"))
    for name in ("tracker", "callback", "metric"):
        assert GROUPS[f"{name}s"].choices() == names(name)
    assert set(SLOTS) <= GROUPS.keys()


def test_only_slots_that_an_algorithm_can_do_without_have_the_choice_none() -> None:
    assert "none" in GROUPS["correction"].choices()
    assert "none" in GROUPS["partitioner"].choices()
    assert "none" not in GROUPS["server_optimizer"].choices()


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_the_default_of_a_group_is_one_of_its_choices(group: Group) -> None:
    assert group.default is None or group.default in group.choices()


@pytest.mark.parametrize(("group", "choice"), CHOICES, ids=[f"{group.name}={choice}" for group, choice in CHOICES])
def test_every_option_has_a_help_text(group: Group, choice: str) -> None:
    assert [option.name for option in _flat(group.options(choice)) if not option.help] == []


def test_every_setting_of_a_run_has_a_help_text() -> None:
    assert [
        option.name for option in (*run_options(), *preprocess_options(), *engine_options()) if not option.help
    ] == []


@pytest.mark.fast_cases("server_optimizer")
@pytest.mark.parametrize(
    "group", [pytest.param("algorithm", marks=pytest.mark.slow), "model", "engine", "server_optimizer", "aggregator"]
)
def test_a_choice_is_composed_with_its_name(group: str) -> None:
    for choice in GROUPS[group].choices():
        if choice != "none":
            assert compose_config([f"{group}={choice}"])[group].name == choice


@pytest.mark.slow
def test_lists_of_settings_are_not_shared_between_runs() -> None:
    first = compose_config(["personal_layers=matching"])
    first.personal_layers.patterns.append("fc.*")
    first.algorithm.schedule.warmup = 3
    second = compose_config(["personal_layers=matching"])
    assert list(second.personal_layers.patterns) == []
    assert second.algorithm.schedule.warmup == 0


def test_names_of_settings_include_nested_ones() -> None:
    expected = {"rounds", "data.users", "server_optimizer.schedule.warmup", "callbacks.early_stopping.patience"}
    assert expected | {"preprocess.crop", "engine.workers", "partitioner.alpha"} <= set(setting_names())


def _flat(options: tuple[Option, ...]) -> list[Option]:
    """Return options, with those of nested components in place of the components."""
    return [leaf for option in options for leaf in _flat(nested_options(option)) or [option]]
