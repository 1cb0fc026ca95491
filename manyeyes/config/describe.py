"""The description of a run that its folder keeps in config.yaml: plain data from which everything can be built again."""

from collections.abc import Iterator, Mapping
from typing import Any

from manyeyes.config.build import LISTS, listed
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.registry import describe, import_object, source_hash


def describe_run(settings: Mapping[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """Return the settings of a run with the component of every slot in full, and the source hash of a user's own.

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
            description[slot] = _without_run_length(describe(slot, component), settings)
    description |= {name: listed(settings.get(name)) for name in LISTS}
    paths = sorted(set(_import_paths(description)))
    return description | {"sources": {path: source_hash(import_object(path)) for path in paths}}


def _import_paths(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield the import paths of the components in a description that are not built in."""
    for value in description.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping) and ":" in str(item.get("name", "")):
                yield str(item["name"])


def _without_run_length(description: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description in which a schedule that spans the whole run has no length, as in the settings."""
    schedule, chosen = description.get("schedule"), (settings["algorithm"] or {}).get("schedule")
    if schedule and chosen and chosen["kind"] == schedule["kind"] and not chosen["rounds"]:
        return {**description, "schedule": {**schedule, "rounds": 0}}
    return description
