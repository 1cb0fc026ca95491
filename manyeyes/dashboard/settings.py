"""The settings of runs as flat names and texts, read safely: a configuration file may be of unknown origin."""

from collections.abc import Iterator
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

import yaml

from manyeyes.io.tail import read_small_file
from manyeyes.report.text import printable
from manyeyes.training.run_record import NOT_COMPARED

MAX_SETTINGS = 1000  # of a run
MAX_CHARACTERS = 300  # of a text
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every value as the text that is written

Settings = dict[str, str]


def read_settings(path: Path | str) -> Settings:
    """Return every setting by its full name; empty if the file cannot be read."""
    try:
        events = yaml.parse(read_small_file(str(path)), LOADER)
        content = dropwhile(lambda event: isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent), events)
        settings = dict(islice(_flat(events, "", next(content)), MAX_SETTINGS))
    except (OSError, ValueError, RuntimeError, yaml.YAMLError):  # such as nesting that is too deep
        return {}
    # JavaScript would sort names that are numbers before all others, and no run of manyeyes has one.
    names = (name for name in settings if name and name not in NOT_COMPARED and not name.isdecimal())
    return {safe_text(name): safe_text(settings[name]) for name in names}


def safe_text(text: str) -> str:
    """Return text of unknown origin without control characters, and shortened."""
    text = text if text.isprintable() else printable(text)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def compact_settings(runs: dict[str, Settings]) -> dict[str, Any]:
    """Return the settings of many runs without repetition: those that all runs share, and each other value once.

    `rows` has for each run the indices of its values in `values`, where None is a missing value.
    """
    names = dict.fromkeys(name for settings in runs.values() for name in settings)
    values = {name: list(dict.fromkeys(settings.get(name) for settings in runs.values())) for name in names}
    common = {name: values.pop(name)[0] for name in names if len(values[name]) == 1}
    indices = {name: {value: i for i, value in enumerate(column)} for name, column in values.items()}
    rows = {run: [index[settings.get(name)] for name, index in indices.items()] for run, settings in runs.items()}
    return {"common": common, "values": values, "rows": rows}


def _flat(events: Iterator[yaml.Event], name: str, event: yaml.Event) -> Iterator[tuple[str, str]]:
    """Yield the values below an event, which the next events have; aliases are not followed."""
    if isinstance(event, yaml.ScalarEvent):
        yield name, event.value
    elif isinstance(event, yaml.MappingStartEvent):
        while isinstance(key := next(events), yaml.ScalarEvent):
            yield from _flat(events, f"{name}.{key.value}" if name else key.value, next(events))
    elif isinstance(event, yaml.SequenceStartEvent):
        scalars: list[str] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            if isinstance(item, yaml.ScalarEvent):
                scalars.append(item.value)
            else:
                yield from _flat(events, f"{name}.{len(scalars)}", item)
        yield name, f"[{','.join(scalars)}]"
