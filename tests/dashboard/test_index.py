"""The index of the runs below a folder, and how it is updated."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.dashboard.index import RunIndex
from manyeyes.io.files import acquire_lock
from manyeyes.training import run_files

Write = Callable[..., Path]
Append = Callable[..., None]


def rows(index: RunIndex, since: str = "") -> dict[str, dict[str, Any]]:
    """Return the rows that have changed, by the names of the runs."""
    return {row["name"]: dict(row) for row in index.changes(since)["runs"]}


def version(index: RunIndex) -> str:
    return str(index.changes()["version"])


def test_runs_are_found_at_any_depth_and_links_are_not_followed(root: Path, tmp_path: Path, write: Write) -> None:
    for name in ("a", "sweep/0", "paper/table/row/seed-1", ".hidden/x"):
        write(name)
    shutil.move(root / "a", tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "half").mkdir()
    (root / "half" / "metrics.jsonl").symlink_to(tmp_path / "outside" / "metrics.jsonl")
    assert set(rows(RunIndex(root, refresh_seconds=0))) == {"sweep/0", "paper/table/row/seed-1"}


def test_the_folder_may_be_a_run_itself(root: Path, write: Write) -> None:
    assert set(rows(RunIndex(write("a/b"), refresh_seconds=0))) == {"b"}


def test_the_row_of_a_run_that_trains(root: Path, write: Write, append: Append) -> None:
    """Rounds of half a second and 100 images; 5 of 10 rounds are completed, and a process holds its lock."""
    folder = write("one", 4, privacy={"name": "central", "epsilon": 2.0})
    costs = {"num_images": 100, "seconds": 0.5, "epsilon": 0.75}
    append(folder, {"round": 5, "train_loss": 0.25, **costs, "rejected_clients": ["x", "y"]})
    with acquire_lock(folder, folder / ".lock"):
        row = rows(RunIndex(root, refresh_seconds=0))["one"]
    assert row.pop("pid") == os.getpid()
    assert row.pop("id") and abs(row.pop("updated") - time.time()) < 60
    assert row == {
        **{"name": "one", "status": "running", "note": "", "round": 5, "rounds": 10, "metric": "accuracy"},
        **{"score": 0.4, "shared": None, "loss": 0.25, "images_per_second": 200.0, "seconds_left": 2.5},
        **{"epsilon": 0.75, "epsilon_budget": 2.0, "num_rejected": 2, "caveats": ""},
    }


def test_the_score_is_that_of_personalized_models_next_to_the_shared_one(
    root: Path, write: Write, append: Append
) -> None:
    append(write("ditto", 4), {"round": 5, "personalized_accuracy": 0.579, "accuracy": 0.1})
    append(
        write("tuned", 4, personal_layers={"name": "head"}), {"round": 5, "personalized_macro_ap": 0.5, "macro_ap": 0.2}
    )
    listed = rows(RunIndex(root, refresh_seconds=0))
    keys = ("metric", "score", "shared")
    assert [listed["ditto"][key] for key in keys] == [
        "personalized_accuracy",
        0.579,
        {"model": "shared model", "score": 0.1},
    ]
    shared = {"model": "models before fine-tuning", "score": 0.2}
    assert [listed["tuned"][key] for key in keys] == ["personalized_macro_ap", 0.5, shared]


def test_an_early_score_of_a_long_run_is_found(root: Path, write: Write, append: Append) -> None:
    folder = write("one", 2, rounds=9000)
    append(folder, *({"round": round, "train_loss": 1.0, "filler": "x" * 300} for round in range(3, 5000)))
    row = rows(RunIndex(root, refresh_seconds=0))["one"]
    assert (row["round"], row["score"]) == (4999, 2 / 9000)


def test_only_changes_since_a_version_are_returned(root: Path, write: Write, append: Append) -> None:
    first, second = write("first", 3), write("second", 3)
    index = RunIndex(root, refresh_seconds=0)
    seen = version(index)
    assert rows(index, seen) == {}
    append(second, {"round": 4, "accuracy": 0.9})
    row = rows(index, seen)
    assert list(row) == ["second"]
    assert (row["second"]["round"], row["second"]["score"]) == (4, 0.9)
    assert len(rows(index, "another.1")) == len(rows(index, "nonsense")) == 2, "an unknown version: everything"

    seen = version(index)
    shutil.rmtree(first)
    answer = index.changes(seen)
    assert (len(answer["removed"]), answer["runs"], list(answer["settings"]["rows"])) == (
        1,
        [],
        [rows(index)["second"]["id"]],
    )


def test_new_and_restored_runs_are_found(root: Path, write: Write) -> None:
    index = RunIndex(root, refresh_seconds=0)
    assert rows(index) == {}
    seen = version(index)
    folder = write("one", 3)
    assert list(rows(index, seen)) == ["one"]
    shutil.rmtree(folder)
    assert rows(index) == {}
    write("one", 5)
    assert rows(index)["one"]["round"] == 5


def test_a_resumed_run_continues_from_its_checkpoint(root: Path, write: Write, append: Append) -> None:
    folder = write("one", 8, age=0)
    index = RunIndex(root, refresh_seconds=0)
    assert rows(index)["one"]["round"] == 8
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:4]))
    append(folder, {"round": 4, "accuracy": 0.75})
    row = rows(index)["one"]
    assert (row["round"], row["score"]) == (4, 0.75)


def test_a_changed_setting_is_returned(root: Path, write: Write) -> None:
    folder = write("one", 3)
    index = RunIndex(root, refresh_seconds=0)
    seen = version(index)
    (folder / "new").write_text((folder / "config.yaml").read_text().replace("rounds: 10", "rounds: 20"))
    (folder / "new").replace(folder / "config.yaml")  # as a resume with more rounds writes it
    answer = index.changes(seen)
    assert answer["settings"]["common"]["rounds"] == "20"
    assert rows(index)["one"]["rounds"] == 20


def test_the_statuses_of_runs_that_have_ended(root: Path, write: Write, append: Append) -> None:
    write("finished")
    write("stopped", 3)
    (write("diverged", 3) / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    (write("failed", 3) / "failed.txt").write_text("No space left on device\n")
    write("fresh", 3, age=1)
    (write("empty", 0) / "metrics.jsonl").unlink()
    append(write("early", 3), {"round": 4, "stop_reason": "loss has not improved"})
    (root / "early" / "model.safetensors").touch()
    statuses = {name: (row["status"], row["note"]) for name, row in rows(RunIndex(root, refresh_seconds=0)).items()}
    assert statuses == {
        "finished": ("finished", ""),
        "stopped": ("stopped", "its process has ended: continue it with resume="),
        "diverged": ("diverged", "the run has diverged: try a lower learning rate"),
        "failed": ("failed", "No space left on device"),
        "fresh": ("running", ""),
        "empty": ("empty", "it ended before round 1"),
        "early": ("finished", ""),
    }


def test_a_finished_run_may_be_continued(root: Path, write: Write, append: Append) -> None:
    folder = write("one")
    index = RunIndex(root, refresh_seconds=0)
    assert rows(index)["one"]["status"] == "finished"
    with acquire_lock(folder, folder / ".lock"):
        (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("rounds: 10", "rounds: 20"))
        append(folder, {"round": 11})
        assert rows(index)["one"]["status"] == "running"
    os.utime(folder / "metrics.jsonl", (time.time() - 60,) * 2)
    assert rows(index)["one"]["status"] == "stopped", "its model is older than its last round"


def test_a_locked_run_that_writes_nothing_is_stale(root: Path, write: Write) -> None:
    folder = write("one", 3)
    with acquire_lock(folder, folder / ".lock"):
        assert rows(RunIndex(root, refresh_seconds=0))["one"]["status"] == "stale"


def test_a_run_of_another_machine_is_running_while_it_grows(root: Path, write: Write, append: Append) -> None:
    """Its lock is not visible here, but its lines are."""
    folder = write("one", 3)
    index = RunIndex(root, refresh_seconds=0)
    assert rows(index)["one"]["status"] == "stopped"
    append(folder, {"round": 4})
    os.utime(folder / "metrics.jsonl", (time.time() - 100,) * 2)
    assert rows(index)["one"]["status"] == "running"
    os.utime(folder / "metrics.jsonl", (time.time() - 1000,) * 2)
    append(folder, {"round": 5})
    os.utime(folder / "metrics.jsonl", (time.time() - 900,) * 2)
    assert rows(index)["one"]["status"] == "stale"


def test_without_a_list_of_locks_the_process_is_looked_up(
    root: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "LOCKS_FILE", "/nowhere")
    (write("mine", 3, age=100) / ".lock").write_text(str(os.getpid()))
    (write("ended", 3, age=100) / ".lock").write_text("999999999")
    (write("damaged", 3, age=100) / ".lock").write_text("what?")
    assert {name: row["status"] for name, row in rows(RunIndex(root, refresh_seconds=0)).items()} == {
        **{"mine": "running", "ended": "stopped", "damaged": "stopped"}
    }


def test_a_refresh_does_not_take_the_lock(root: Path, write: Write) -> None:
    folder = write("one", 3)
    index = RunIndex(root, refresh_seconds=0)
    rows(index)
    acquire_lock(folder, folder / ".lock").close()


def test_names_that_are_not_valid_text_are_replaced(root: Path, write: Write) -> None:
    write("<img src=x onerror=alert(1)>")
    os.rename(write("plain"), os.fsencode(root) + b"/not-\xff-utf8")
    assert set(rows(RunIndex(root, refresh_seconds=0))) == {
        "<img src=x onerror=alert(1)>",
        "not-\N{REPLACEMENT CHARACTER}-utf8",
    }
