"""What a run was told: its configuration as a flat list of names and values."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml

from manyeyes.io.tail import read_small_file
from manyeyes.report.text import printable

MOST = 1000  # settings of a run
LONGEST = 300  # letters of a value
HIDDEN = ("folder", "resume")  # where a run is, not what it is
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every value as the text that is written

Settings = dict[str, str]


def read_settings(path: str) -> Settings:
    """Every setting by its name in full, as it is written; none where the file is not there or not readable."""
    try:
        events = yaml.parse(read_small_file(path), LOADER)
        found = {name: value for name, value in islice(_flat(events, "", _opening(events)), MOST) if name not in HIDDEN}
    except (OSError, ValueError, RuntimeError, yaml.YAMLError):  # too deep, or keys that are no text, among them
        return {}
    # A page's script puts names that are numbers before all others, and a run of ours has none.
    return {shown(name): shown(value) for name, value in found.items() if name and not name.isdecimal()}


def _opening(events: Iterator[yaml.Event]) -> yaml.Event:
    """The first event of the document's content."""
    outside = (yaml.StreamStartEvent, yaml.DocumentStartEvent)
    return next((event for event in events if not isinstance(event, outside)), yaml.StreamEndEvent())


def _flat(events: Iterator[yaml.Event], name: str, event: yaml.Event) -> Iterator[tuple[str, str]]:
    """What begins with this event, read from the ones that follow; a reference to another place is not followed."""
    if isinstance(event, yaml.ScalarEvent):
        yield name, event.value
    elif isinstance(event, yaml.MappingStartEvent):
        while isinstance(key := next(events), yaml.ScalarEvent):
            yield from _flat(events, f"{name}.{key.value}" if name else key.value, next(events))
    elif isinstance(event, yaml.SequenceStartEvent):
        plain: list[str] = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            if isinstance(inner, yaml.ScalarEvent):
                plain.append(inner.value)
            else:
                yield from _flat(events, f"{name}.{len(plain)}", inner)
        yield name, f"[{','.join(plain)}]"


def shown(text: str) -> str:
    """Text of unknown origin, as far as a page should show it."""
    text = text if text.isprintable() else printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def differing(runs: dict[str, Settings]) -> dict[str, Any]:
    """The settings of many runs, small: those that all share, and for the others each value once.

    `rows` has for each run the places of its values in `values`, -1 where it has none.
    """
    names = list(dict.fromkeys(name for settings in runs.values() for name in settings))
    common: Settings = {}
    values: dict[str, list[str]] = {}
    rows: dict[str, list[int]] = {run: [] for run in runs}
    for name in names:
        places: dict[str | None, int] = {}
        column = []
        for settings in runs.values():
            value = settings.get(name)
            column.append(-1 if value is None else places.setdefault(value, len(places)))
        if len(places) == 1 and -1 not in column:
            common[name] = str(next(iter(places)))
            continue
        values[name] = [str(value) for value in places]
        for row, place in zip(rows.values(), column, strict=True):
            row.append(place)
    return {"common": common, "values": values, "rows": rows}
