"""Writing a store: progress, and errors before anything is written."""

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
from manyeyes.data.store.chunks import CHUNK_SIZE
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from tests.data.manifests import NUM_IMAGES, small_manifest


def test_progress_is_reported(tmp_path: Path, manifest: Manifest) -> None:
    reports: list[tuple[int, int]] = []
    write_store(manifest, tmp_path / "s", 8, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(min(k * CHUNK_SIZE, NUM_IMAGES), NUM_IMAGES) for k in range(12)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0: set it to a whole number of at least 1 and at most 4096"),
        ({"encoding": "png"}, "encoding is 'png': set it to raw or jpeg"),
        ({"processes": 0}, "processes is 0: set it to a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_store(small_manifest(), tmp_path / "s", **{"size": 4, **options})
    with pytest.raises(ValueError, match="small has no examples"):
        write_store(small_manifest().take(np.array([], int)), tmp_path / "s", 4)


def test_a_folder_with_content_is_refused_and_an_empty_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    write_store(small_manifest(), tmp_path / "s", 4)
    with pytest.raises(
        ValueError, match="s already contains a prepared dataset: delete it, or choose another folder with --out"
    ):
        write_store(small_manifest(), tmp_path / "s", 4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="other already contains something else"):
        write_store(small_manifest(), tmp_path / "other", 4)
    assert sorted(os.listdir(tmp_path)) == ["other", "s"]


@pytest.mark.parametrize("target_exists", [True, False])
def test_through_a_link_the_store_is_written_to_its_target(tmp_path: Path, target_exists: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "s").symlink_to("disk/large")
    if target_exists:
        (tmp_path / "disk" / "large").mkdir()
    write_store(small_manifest(), tmp_path / "s", 4)
    assert (tmp_path / "s").is_symlink()
    assert os.listdir(tmp_path / "disk") == ["large"]
    assert len(open_population(tmp_path / "s")) == len(small_manifest())


def test_a_mount_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r"/ is a mount point, .* give a folder in it"):
        write_store(small_manifest(), Path("/"), 4)


def test_too_little_space_is_refused(tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        ValueError, match=r"has 0.00 GB free and .*s takes 0.00 GB: make room, or choose a smaller size"
    ):
        write_store(manifest, tmp_path / "s", 8)


LOCK_HOLDER = """
import sys
from pathlib import Path
from manyeyes.io.files import acquire_lock
Path(".s.preparing").mkdir()
with acquire_lock(Path("s"), Path(".s.preparing/.lock")):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    holder = spawn("-c", LOCK_HOLDER, stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match=f"s is in use by process {holder.pid}: wait for it, or choose another folder"):
        write_store(small_manifest(), tmp_path / "s", 4)
    holder.kill()
    holder.wait(60)
    write_store(small_manifest(), tmp_path / "s", 4)
