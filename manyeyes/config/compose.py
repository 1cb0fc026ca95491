"""The one place that composes settings with Hydra: groups are stored from the registry, a user's own components by path."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from manyeyes.config.errors import check_settings, format_error, is_config_error
from manyeyes.config.groups import GROUPS, Group, dict_node, group_node, list_key, preprocess_options, run_options

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def compose_config(overrides: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
    """Return the settings that overrides in the form of `manyeyes run` give; a mistake is a ValueError in one sentence."""
    try:
        with hydra_context():
            config = compose("config", overrides=prepare_overrides(overrides), return_hydra_config=return_hydra_config)
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error)) from None
        raise
    check_settings(config)
    return config


@contextmanager
def hydra_context() -> Iterator[None]:
    """Within, Hydra's `compose` knows every group."""
    store_groups()
    outer = GlobalHydra.instance().hydra  # of a Hydra application, or of a context around this one
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base="1.3", config_path=None):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


@cache  # Hydra remembers
def store_groups() -> None:
    """Store every group with Hydra, and where Hydra may write: a run's folder is created by the run alone."""
    store = ConfigStore.instance()
    settings: dict[str, Any] = {name: {} if group.is_list else None for name, group in GROUPS.items()}
    settings |= {"preprocess": dict_node(preprocess_options()), **dict_node(run_options())}
    store.store(name="settings", node=DictConfig(settings))
    for group in GROUPS.values():
        for choice in group.choices():
            _store_choice(group, choice, choice)
    hydra = {"run": {"dir": "."}, "sweep": {"dir": "runs/${now:%Y-%m-%d_%H-%M-%S}_sweep"}, "output_subdir": None}
    quiet = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
    chosen: list[dict[str, Any]] = [{name: [] if group.is_list else group.default} for name, group in GROUPS.items()]
    store.store(name="config", node={"defaults": ["settings", *chosen, "_self_", *quiet], "hydra": hydra})


def prepare_overrides(overrides: Sequence[str]) -> list[str]:
    """Store the components that overrides name by import path, and return the overrides with names that Hydra can read."""
    store_groups()
    return [_prepare(override) for override in overrides]


def _prepare(override: str) -> str:
    name, equals, value = override.partition("=")
    group = GROUPS.get(name.lstrip("+"))
    if group is None or not equals:
        return override
    return f"{name}={IMPORT_PATH.sub(lambda match: _store_user_component(group, match[0]), value)}"


def _store_user_component(group: Group, import_path: str) -> str:
    """Store a user's own component, and return the name that it has in its group."""
    name = re.sub(r"\W", "__", import_path)
    _store_choice(group, name, import_path)
    return name


def _store_choice(group: Group, name: str, choice: str) -> None:
    package = f"{group.name}.{list_key(choice)}" if group.is_list else None
    node = group_node(choice, group.options(choice))
    ConfigStore.instance().store(group=group.name, name=name, node=node, package=package)


PATHS = ("folder", "resume", "data.path")  # settings that are paths
PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*")  # what Hydra reads without quotes


def quote_override(word: str) -> str:
    """The setting, with quotes around a path that Hydra would read otherwise."""
    name, _, value = word.partition("=")
    if name not in PATHS or PLAIN.fullmatch(value) or value[:1] in ("'", '"'):
        return word
    text = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + (r"\"" if found[2] else ""), value)
    return f'{name}="{text}"'


def resume_command(folder: Path) -> str:
    """The command that goes on with a run, as it can be pasted into a shell."""
    return f"manyeyes run {shlex.quote(quote_override(f'resume={folder}'))}"
