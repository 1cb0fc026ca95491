"""The one place that composes settings with Hydra: groups come from the registry, a user's components by import path."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, StringNode

from manyeyes.config.errors import check_settings, format_error, is_config_error
from manyeyes.config.groups import (
    GROUPS,
    Group,
    boolean_settings,
    dict_node,
    preprocess_options,
    run_options,
    user_choices,
)
from manyeyes.core.registry import Option, format_value


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Return the settings that overrides in the form of `manyeyes run` give; a mistake is a ValueError in one sentence."""
    try:
        with hydra_context():
            config = compose("config", overrides=prepare_overrides(overrides))
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error, overrides)) from None
        raise
    check_settings(config)
    return config


@contextmanager
def hydra_context() -> Iterator[None]:
    """Within this context, Hydra's `compose` knows every group."""
    store_groups()
    outer = GlobalHydra.instance().hydra  # of a Hydra application, or of a context around this one
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base="1.3", config_path=None):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


@cache  # Hydra keeps what is stored
def store_groups() -> None:
    """Store every group with Hydra, and where Hydra may write: a run's folder is created by the run alone."""
    store = ConfigStore.instance()
    catalogs = {name: group.catalog() for name, group in GROUPS.items()}
    settings: dict[str, Any] = {name: {} if group.is_list else None for name, group in GROUPS.items()}
    settings |= {"preprocess": dict_node(preprocess_options()), **dict_node(run_options())}
    store.store(name="settings", node=DictConfig(settings))
    for group in GROUPS.values():
        for choice, options in catalogs[group.name].items():
            _store_choice(group, choice, choice, options)
    hydra = {
        "run": {"dir": "."},
        "sweep": {"dir": "runs/${now:%Y-%m-%d_%H-%M-%S}_sweep"},
        "output_subdir": None,
        "callbacks": {"report": {"_target_": "manyeyes.config.sweep.ReportCommand"}},
    }
    quiet = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
    chosen: list[dict[str, Any]] = [{name: [] if group.is_list else group.default} for name, group in GROUPS.items()]
    store.store(name="config", node={"defaults": ["settings", *chosen, "_self_", *quiet], "hydra": hydra})


def prepare_overrides(overrides: Sequence[str]) -> list[str]:
    """Store the components that overrides choose by import path; return the overrides with names that Hydra can read."""
    store_groups()
    for override in overrides:
        name, _, value = override.partition("=")
        if TOO_MANY_DIGITS.search(override):
            raise ValueError(f"{name} has a number of more than 1000 digits: give a smaller one.")
        if INTEGER.fullmatch(value) and value not in ("0", "1") and name in boolean_settings():  # else taken for true
            raise ValueError(f"{name} is {format_value(value)}: it must be true or false.")
    return [_store_user_choices(override) for override in overrides]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _store_user_choices(override: str) -> str:
    name, _, value = override.partition("=")
    if name == "model.adapter":  # which the adapter's options have too, as the groups
        return f"{name}.name={value}"
    group = GROUPS.get(name.lstrip("+"))
    if group and (value in ("null", "true", "false") or _is_number(value)):
        raise ValueError(f"{override} is not possible: write {name}=NAME.")

    def store(import_path: re.Match[str]) -> str:
        assert group is not None, f"{override} chooses from no group"
        name = re.sub(r"\W", "__", import_path[0])
        _store_choice(group, name, import_path[0], group.options(import_path[0]))
        return name

    return user_choices(group).sub(store, override) if group else override


def _store_choice(group: Group, name: str, choice: str, options: Iterable[Option]) -> None:
    node = {"name": StringNode(choice, is_optional=False), **dict_node(options)}
    package = group.prefix(choice) if group.is_list else None
    ConfigStore.instance().store(group=group.name, name=name, node=DictConfig(node), package=package)


TOO_MANY_DIGITS = re.compile(r"\d{1000}")  # Python reads and prints up to 4300
INTEGER = re.compile(r"[+-]?\d[\d_]*")
PATH_SETTINGS = ("folder", "resume", "data.path")
UNQUOTED = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*")  # what Hydra reads without quotes


def quote_override(override: str) -> str:
    """Return an override with quotes around a path that Hydra would misread."""
    name, _, value = override.partition("=")
    if name not in PATH_SETTINGS or UNQUOTED.fullmatch(value) or value[:1] in ("'", '"'):
        return override
    text = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + (r"\"" if match[2] else ""), value)
    return f'{name}="{text}"'


def resume_command(folder: Path) -> str:
    """Return the command that continues a run, quoted for a shell."""
    return f"manyeyes run {shlex.quote(quote_override(f'resume={folder}'))}"
