"""Long metrics files are read as columns, with the numbers that reading them line by line gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.dashboard.curves import Columns
from manyeyes.training.event_columns import MIN_LINES, LongEvents, parse_block
from manyeyes.training.run_record import RunRecord


def make_events(count: int) -> list[dict[str, Any]]:
    """Return events of all kinds: with and without an evaluation, with a text, a list, a boolean and an infinite number."""
    events: list[dict[str, Any]] = []
    for round in range(count):
        event = {"round": 2 * round, "train_loss": 1 / (1 + round), "seconds": 0.25, "num_images": round, "is_on": True}
        extras = {"accuracy": 0.5, "note": "2026-01-01", "rejected_clients": [1, 2]} if round % 10 == 3 else {}
        events.append({**event, **extras, **({"train_loss": None} if round % 7 == 0 else {})})
    return events


def text(events: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def test_columns_of_long_files_are_those_of_their_events() -> None:
    events = make_events(200)
    parsed = LongEvents.parse(text(events))
    assert parsed is not None
    long, short = (RunRecord(name="run", folder=Path(), events=of_run) for of_run in (parsed, events))
    assert long.columns.keys() == short.columns.keys()
    for name, (rounds, values) in short.columns.items():
        assert np.array_equal(long.columns[name][0], rounds), name
        assert np.array_equal(long.columns[name][1], values), name
    assert all(np.array_equal(long.cumulative[name], sums) for name, sums in short.cumulative.items())
    assert (long.rounds, list(long.events), long.events[-1]) == (short.rounds, events, events[-1])
    assert np.array_equal(long.event_rounds, short.event_rounds)


@pytest.mark.parametrize(
    "line",
    [
        b'{"round": 5}\n',
        b'{"round": 99',
        b'{"round": "9"}\n',
        b'{"round": true}\n',
        b"[1]\n",
        b"\n",
        b"{}\n",
        b"\xff\n",
    ],
)
def test_a_file_with_a_damaged_line_is_left_to_reading_by_line(line: bytes) -> None:
    assert LongEvents.parse(text(make_events(20)) + line) is None


def test_seconds_that_are_no_numbers_are_left_to_reading_by_line() -> None:
    assert parse_block(b'{"round": 1, "seconds": "a day"}\n') is None


def test_live_curves_of_long_files_are_those_of_their_lines(tmp_path: Path) -> None:
    events = make_events(MIN_LINES + 50)
    path, live = tmp_path / "metrics.jsonl", Columns(str(tmp_path / "metrics.jsonl"))
    path.write_bytes(text(events))
    live.refresh()
    by_line = Columns(str(path))
    for line in text(events).splitlines():
        by_line._add(line)
    assert set(live.names) == set(by_line.names)
    for name in live.names:
        ours, theirs = live.curve("round", name), by_line.curve("round", name)
        assert ours is not None
        assert theirs is not None
        assert np.array_equal(ours, theirs), name
