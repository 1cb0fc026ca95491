"""The status of a run, from the files and the lock in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyeyes.io.files import acquire_lock
from manyeyes.training.run_files import (
    Status,
    finite_numbers,
    locked_inodes,
    parse_event,
    read_last_event,
    read_status,
    run_status,
)


@pytest.mark.parametrize(
    ("signals", "status"),
    [
        ({"has_events": False}, "empty"),
        ({"has_events": True}, "stopped"),
        ({"has_events": True, "is_complete": True}, "finished"),
        ({"has_events": True, "is_complete": True, "failure": ("diverged", "NaN")}, "diverged"),
        ({"has_events": False, "is_locked": True, "silent_seconds": 1}, "running"),
        ({"has_events": True, "is_locked": True, "failure": ("failed", "full"), "silent_seconds": 1}, "running"),
        ({"has_events": True, "is_locked": True, "silent_seconds": 301}, "stale"),
        ({"has_events": True, "is_locked": True, "silent_seconds": 301, "seconds_per_round": 20}, "running"),
        ({"has_events": True, "is_growing": True, "silent_seconds": 60}, "running"),
        ({"has_events": True, "is_growing": True, "silent_seconds": 301}, "stale"),
    ],
)
def test_a_status_follows_from_signals(signals: dict[str, Any], status: Status) -> None:
    assert run_status(**signals)[0] == status


def write_run(folder: Path, rounds: int, planned_rounds: int = 10) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(f"rounds: {planned_rounds}\n")
    (folder / "metrics.jsonl").write_text("".join(f'{{"round": {round}}}\n' for round in range(rounds + 1)))


def write_model(folder: Path, age: float) -> None:
    """Write the model this many seconds before the last event."""
    (folder / "model.safetensors").touch()
    time = (folder / "metrics.jsonl").stat().st_mtime_ns - round(age * 1e9)
    os.utime(folder / "model.safetensors", ns=(time, time))


def test_a_folder_without_files_is_empty(tmp_path: Path) -> None:
    assert read_status(tmp_path)[0] == read_status(tmp_path / "missing")[0] == "empty"


def test_a_run_with_its_model_is_finished(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    assert read_status(tmp_path)[0] == "stopped"
    write_model(tmp_path, age=0)
    assert read_status(tmp_path) == ("finished", "")


def test_a_finished_run_that_was_continued_and_stopped_is_stopped(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=7, planned_rounds=10)
    write_model(tmp_path, age=60)
    assert read_status(tmp_path)[0] == "stopped"


def test_a_copied_run_is_finished_whatever_the_order_of_its_files(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=10, planned_rounds=10)
    write_model(tmp_path, age=60)
    assert read_status(tmp_path)[0] == "finished"


def test_a_copied_run_that_stopped_early_is_finished(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3, planned_rounds=10)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 4, "stop_reason": "no improvement"}) + "\n")
    write_model(tmp_path, age=60)
    assert read_status(tmp_path)[0] == "finished"


def test_a_failure_is_explained_in_the_words_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    (tmp_path / "failed.txt").write_text("No space left on device\n")
    assert read_status(tmp_path) == ("failed", "No space left on device")
    (tmp_path / "diverged.txt").write_text("the loss is not finite\n")
    assert read_status(tmp_path) == ("diverged", "the loss is not finite")


def test_a_run_whose_lock_is_held_is_running(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    with acquire_lock(tmp_path, tmp_path / ".lock"):
        assert read_status(tmp_path)[0] == "running"
    assert read_status(tmp_path)[0] == "stopped"


def test_a_lock_is_known_by_its_process_id_where_the_system_lists_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyeyes.training.run_files.LOCKS_FILE", str(tmp_path / "missing"))
    assert locked_inodes() is None
    write_run(tmp_path, rounds=3)
    (tmp_path / ".lock").write_text(str(os.getpid()))
    assert read_status(tmp_path)[0] == "running"
    (tmp_path / ".lock").write_text("not a number")
    assert read_status(tmp_path)[0] == "stopped"


def test_the_last_event_is_found_behind_long_and_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_last_event(path) is None
    path.write_text('{"round": 6}\n{"round": 7, "note": "' + "x" * 2**21 + '"}\n' + "?" * 2**15 + '\n{"round": 8')
    event = read_last_event(path)
    assert event is not None
    assert event["round"] == 7


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b'{"loss": 1}',
        b'{"round": "1"}',
        b'{"round": true}',
        b'{"round": -1}',
        b'{"round": 1',
        b"[" * 99_999,
        b"\xff",
    ],
)
def test_a_damaged_line_is_not_an_event(line: bytes) -> None:
    assert parse_event(line) is None


def test_the_numbers_of_an_event_are_finite() -> None:
    line = b'{"round": 3, "loss": 0.5, "a": NaN, "b": Infinity, "c": 1' + b"0" * 400 + b', "names": ["x"], "n": 2}'
    event = parse_event(line)
    assert event is not None
    assert dict(finite_numbers(event)) == {"loss": 0.5, "n": 2.0}
