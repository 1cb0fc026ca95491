"""Writing a store: it tells how far it is, and refuses what cannot end well before it begins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store import reader as store
from manyeyes.data.store.chunks import CHUNK
from tests.data.manifests import COUNT, few


def test_progress_is_told(tmp_path: Path, given: Manifest) -> None:
    told: list[tuple[int, int]] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append((done, total)))
    assert told == [(min(k * CHUNK, COUNT), COUNT) for k in range(12)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 0}, "size is 0: give a number of pixels from 1 to 4096"),
        ({"encoding": "png"}, "encoding is 'png': choose raw or jpeg"),
        ({"processes": 0}, "processes is 0: give at least 1"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        store.write(few(), tmp_path / "s", **{"size": 4, **changes})
    with pytest.raises(ValueError, match="few lists no examples"):
        store.write(few().take(np.array([], int)), tmp_path / "s", 4)


def test_a_folder_that_is_taken_is_refused_and_an_empty_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    store.write(few(), tmp_path / "s", 4)
    with pytest.raises(ValueError, match="s already holds a store: delete it, or choose another folder"):
        store.write(few(), tmp_path / "s", 4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="other already holds something else"):
        store.write(few(), tmp_path / "other", 4)
    assert sorted(os.listdir(tmp_path)) == ["other", "s"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_leads_to_where_the_store_is_made(tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "s").symlink_to("disk/large")
    if there:
        (tmp_path / "disk" / "large").mkdir()
    store.write(few(), tmp_path / "s", 4)
    assert (tmp_path / "s").is_symlink()
    assert os.listdir(tmp_path / "disk") == ["large"]
    assert len(store.open(tmp_path / "s")) == len(few())


def test_a_mount_point_cannot_become_a_store_and_is_refused_before_the_work() -> None:
    with pytest.raises(ValueError, match=r"/ is where a disk is mounted, .* give a folder in it"):
        store.write(few(), Path("/"), 4)


def test_too_little_space_is_said_before_anything_is_done(
    tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ValueError, match=r"s needs 0.0 GB and its disk has 0.0 GB free: make room, or"):
        store.write(given, tmp_path / "s", 8)


HOLDER = """
import sys
from pathlib import Path
from manyeyes.io.files import hold
Path(".s.preparing").mkdir()
with hold(Path("s"), Path(".s.preparing/.lock")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    holder = spawn("-c", HOLDER, stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=f"s is in use by process {holder.pid}: wait for it, or choose another folder"):
        store.write(few(), tmp_path / "s", 4)
    holder.kill()
    holder.wait(60)
    store.write(few(), tmp_path / "s", 4)
