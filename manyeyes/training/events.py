"""Events: what is recorded of each round, as one line of JSON in `metrics.jsonl`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class MetricsFile:
    """Appends events to a file."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Continue a file after its first `keep_bytes` bytes: later lines belong to rounds that are repeated."""
        if keep_bytes and path.stat().st_size < keep_bytes:
            raise ValueError(f"{path} is shorter than its checkpoint says: restore the file, or start a new run.")
        self._file = path.open("ab")
        self._file.truncate(keep_bytes)

    def write(self, event: Event) -> None:
        self._file.write(json.dumps(event).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Flush all lines to disk and return the size of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> list[Event]:
    """Return the events of a metrics file; a last line that a crash cut off is ignored."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def scalars(event: Event) -> dict[str, float]:
    """Return the metrics of an event that can be drawn over rounds."""
    return {name: value for name, value in event.items() if name != "round" and isinstance(value, int | float)}
