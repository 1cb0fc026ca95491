"""The description of a run that its folder keeps in config.yaml: plain data from which everything can be built again."""

from collections.abc import Iterator, Mapping
from typing import Any

from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.registry import describe, import_object, source_hash

LISTS = ("trackers", "callbacks", "metrics")


def describe_run(settings: Mapping[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """Return the settings of a run with the component of every slot in full, and the source of a user's own.

    Parameters
    ----------
    settings
        `algorithm`, `data`, `model`, `preprocess`, `engine` and the run's settings, as plain data; slots where they
        replace what the named algorithm has.
    algorithm
        What the settings build.
    """
    description = {name: value for name, value in settings.items() if name not in ("folder", "resume")}
    for slot in SLOTS:
        component = getattr(algorithm, slot)
        if component is None:
            description[slot] = None
        elif not description.get(slot):
            description[slot] = _whole_run_schedule(describe(slot, component), settings)
    description |= {name: _as_list(settings.get(name)) for name in LISTS}
    description["sources"] = describe_sources(description)
    return description


def describe_sources(description: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the hash of the source of every component in a description that is named by its import path."""
    return {path: source_hash(import_object(path)) for path in sorted(set(_import_paths(description)))}


def _import_paths(description: Mapping[str, Any]) -> Iterator[str]:
    for value in description.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping) and ":" in str(item.get("name", "")):
                yield str(item["name"])


def _whole_run_schedule(description: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write a schedule of the named algorithm that spans the whole run as its settings have it, without a length."""
    schedule, given = description.get("schedule"), settings["algorithm"].get("schedule")
    if schedule and given and given["kind"] == schedule["kind"] and not given["rounds"]:
        return {**description, "schedule": {**schedule, "rounds": 0}}
    return description


def _as_list(items: Any) -> list[Any]:
    return list(items.values()) if isinstance(items, Mapping) else list(items or ())
