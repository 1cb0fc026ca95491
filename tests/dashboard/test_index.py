"""What the board knows of the runs below a folder, and how it learns what has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.dashboard import status as states
from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.live_run import FIELDS
from manyeyes.io.files import acquire_lock

Write = Callable[..., Path]
Append = Callable[..., None]


def rows(index: RunIndex, since: str = "") -> dict[str, dict[str, Any]]:
    """The facts that have changed, by the runs' names."""
    index._looked = float("-inf")
    return {row[1]: dict(zip(FIELDS, row, strict=True)) for row in index.changes(since)["runs"]}


def version(index: RunIndex) -> str:
    index._looked = float("-inf")
    return str(index.changes()["version"])


def test_runs_are_found_at_any_depth_and_links_are_not_followed(root: Path, tmp_path: Path, write: Write) -> None:
    for name in ("a", "sweep/0", "paper/table/row/seed-1", ".hidden/x"):
        write(name)
    shutil.move(root / "a", tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "half").mkdir()
    (root / "half" / "metrics.jsonl").symlink_to(tmp_path / "outside" / "metrics.jsonl")
    assert set(rows(RunIndex(root))) == {"sweep/0", "paper/table/row/seed-1"}


def test_the_folder_may_be_a_run_itself(root: Path, write: Write) -> None:
    assert set(rows(RunIndex(write("a/b")))) == {"b"}


def test_the_facts_of_a_run(root: Path, write: Write, append: Append) -> None:
    """Rounds of half a second and 100 images; of 10 rounds 4 are done, and its lock says that it goes on."""
    folder = write("one", 4, privacy={"name": "central", "epsilon": 2.0})
    append(
        folder, {"round": 5, "train_loss": 0.25, "images": 100, "seconds": 0.5, "epsilon": 0.75, "left_out": ["x", "y"]}
    )
    with acquire_lock(folder, folder / ".lock"):
        found = rows(RunIndex(root))["one"]
    assert found.pop("id") and abs(found.pop("changed") - time.time()) < 60
    assert found == {
        **{"name": "one", "state": "running", "note": "", "round": 5, "rounds": 10, "metric": "accuracy"},
        **{"value": 0.4, "loss": 0.25, "speed": 200.0, "left": 2.5, "epsilon": 0.75, "budget": 2.0, "left_out": 2},
    }


def test_a_score_is_found_however_long_ago_it_was(root: Path, write: Write, append: Append) -> None:
    folder = write("one", 2, rounds=9000)
    append(folder, *({"round": round, "train_loss": 1.0, "filler": "x" * 300} for round in range(3, 5000)))
    found = rows(RunIndex(root))["one"]
    assert (found["round"], found["value"]) == (4999, 2 / 9000)


def test_a_page_is_told_what_is_new_to_it(root: Path, write: Write, append: Append) -> None:
    first, second = write("first", 3), write("second", 3)
    index = RunIndex(root)
    seen = version(index)
    assert rows(index, seen) == {}
    append(second, {"round": 4, "accuracy": 0.9})
    found = rows(index, seen)
    assert list(found) == ["second"]
    assert (found["second"]["round"], found["second"]["value"]) == (4, 0.9)
    assert len(rows(index, "another.1")) == len(rows(index, "nonsense")) == 2, "who knows nothing of ours gets all"

    seen = version(index)
    shutil.rmtree(first)
    index._looked = float("-inf")
    answer = index.changes(seen)
    assert (len(answer["gone"]), answer["runs"], list(answer["settings"]["rows"])) == (
        1,
        [],
        [rows(index)["second"]["id"]],
    )


def test_a_run_that_begins_or_comes_back_is_there(root: Path, write: Write) -> None:
    index = RunIndex(root)
    assert rows(index) == {}
    seen = version(index)
    folder = write("one", 3)
    assert list(rows(index, seen)) == ["one"]
    shutil.rmtree(folder)
    assert rows(index) == {}
    write("one", 5)
    assert rows(index)["one"]["round"] == 5


def test_a_resumed_run_goes_back_to_its_checkpoint(root: Path, write: Write, append: Append) -> None:
    folder = write("one", 8, age=0)
    index = RunIndex(root)
    assert rows(index)["one"]["round"] == 8
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:4]))
    append(folder, {"round": 4, "accuracy": 0.75})
    found = rows(index)["one"]
    assert (found["round"], found["value"]) == (4, 0.75)


def test_a_changed_setting_is_told(root: Path, write: Write) -> None:
    folder = write("one", 3)
    index = RunIndex(root)
    seen = version(index)
    (folder / "new").write_text((folder / "config.yaml").read_text().replace("rounds: 10", "rounds: 20"))
    (folder / "new").replace(folder / "config.yaml")  # as a resume with more rounds writes it
    index._looked = float("-inf")
    answer = index.changes(seen)
    assert answer["settings"]["common"]["rounds"] == "20"
    assert rows(index)["one"]["rounds"] == 20


def test_a_run_ends_in_one_of_these_ways(root: Path, write: Write) -> None:
    write("finished")
    write("stopped", 3)
    (write("diverged", 3) / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    (write("failed", 3) / "failed.txt").write_text("No space left on device\n")
    write("fresh", 3, age=1)
    found = {name: (row["state"], row["note"]) for name, row in rows(RunIndex(root)).items()}
    assert found == {
        "finished": ("finished", ""),
        "stopped": ("stopped", "its process is gone; resume= continues it"),
        "diverged": ("diverged", "the run has diverged: try a lower learning rate"),
        "failed": ("failed", "No space left on device"),
        "fresh": ("running", ""),
    }


def test_a_finished_run_may_go_on(root: Path, write: Write, append: Append) -> None:
    folder = write("one")
    index = RunIndex(root)
    assert rows(index)["one"]["state"] == "finished"
    with acquire_lock(folder, folder / ".lock"):
        (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("rounds: 10", "rounds: 20"))
        append(folder, {"round": 11})
        assert rows(index)["one"]["state"] == "running"
    os.utime(folder / "metrics.jsonl", (time.time() - 60,) * 2)
    assert rows(index)["one"]["state"] == "stopped", "its model is older than its last round"


def test_a_lock_that_is_held_without_a_word_is_stale(root: Path, write: Write) -> None:
    folder = write("one", 3)
    with acquire_lock(folder, folder / ".lock"):
        assert rows(RunIndex(root))["one"]["state"] == "stale"


def test_a_run_of_another_machine_is_seen_to_go_on(root: Path, write: Write, append: Append) -> None:
    """Its lock is not to be seen here, but its lines are."""
    folder = write("one", 3)
    index = RunIndex(root)
    assert rows(index)["one"]["state"] == "stopped"
    append(folder, {"round": 4})
    os.utime(folder / "metrics.jsonl", (time.time() - 100,) * 2)
    assert rows(index)["one"]["state"] == "running"
    os.utime(folder / "metrics.jsonl", (time.time() - 1000,) * 2)
    append(folder, {"round": 5})
    os.utime(folder / "metrics.jsonl", (time.time() - 900,) * 2)
    assert rows(index)["one"]["state"] == "stale"


def test_where_the_system_tells_no_locks_the_process_is_asked_for(
    root: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "LOCKS", "/nowhere")
    (write("mine", 3, age=100) / ".lock").write_text(str(os.getpid()))
    (write("gone", 3, age=100) / ".lock").write_text("999999999")
    (write("odd", 3, age=100) / ".lock").write_text("what?")
    assert {name: row["state"] for name, row in rows(RunIndex(root)).items()} == {
        **{"mine": "running", "gone": "stopped", "odd": "stopped"}
    }


def test_looking_does_not_hold_a_lock(root: Path, write: Write) -> None:
    folder = write("one", 3)
    index = RunIndex(root)
    rows(index)
    acquire_lock(folder, folder / ".lock").close()


def test_names_are_shown_without_tricks(root: Path, write: Write) -> None:
    write("<img src=x onerror=alert(1)>")
    os.rename(write("plain"), os.fsencode(root) + b"/not-\xff-utf8")
    assert set(rows(RunIndex(root))) == {"<img src=x onerror=alert(1)>", "not-\N{REPLACEMENT CHARACTER}-utf8"}
