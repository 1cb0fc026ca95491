"""The settings of a run that is resumed: those in its folder, with the few changes that are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from manyeyes.config.build import plain

RESUME_OVERRIDES = (
    "rounds",
    "max_local_batches",
    "evaluate_every",
    "evaluate_every_fraction",
    "checkpoint_seconds",
    "client_state_cache_mib",
    "trackers",
    "callbacks",
    "engine",
)
NAMEABLE = ("data", "model")  # which a run that began in Python may not be able to describe


def resumed_settings(folder: Path, config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings in a run's folder, changed by the overrides that a resumed run allows."""
    settings = read_settings(folder)
    new = plain(config)
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        group = name.partition(".")[0]
        if name == "resume":
            continue
        if group not in RESUME_OVERRIDES and not (group in NAMEABLE and settings.get(group) is None):
            raise ValueError(f"{name} cannot change in a resumed run: only {', '.join(RESUME_OVERRIDES)} can.")
        _copy(name.split("."), new, settings)
    for name in NAMEABLE:
        if settings.get(name) is None:
            raise ValueError(
                f"{folder} was begun in Python with a {name} that has no name: continue it with "
                f"train(..., folder={str(folder)!r}, resume=True), or add {name}=..."
            )
    return settings


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the description of the run in a folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"There is no run to resume in {folder}: give the folder of a run.")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}): the run cannot be resumed.") from error
    if not isinstance(settings, dict) or "sources" not in settings:
        raise ValueError(f"{folder} was written by an earlier version of manyeyes, or is damaged: start the run again.")
    return settings


def _copy(keys: list[str], source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy one value of nested settings; of a group or an item of a list, all of it."""
    first, *rest = keys
    if not rest or not isinstance(target.get(first), dict):
        target[first] = source[first]
    else:
        _copy(rest, source[first], target[first])
