"""A store that is incomplete, damaged or of another format gives an error that says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store.reader import open_population, verify
from manyeyes.data.store.writer import write_store
from tests.data.manifests import small_manifest


def change_meta(path: Path, **values: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | values))


def test_the_error_of_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(ValueError, match=r"No prepared dataset at .*s: create one with `manyeyes data prepare`"):
        open_population(path)
    write_store(small_manifest(), path, 4)
    change_meta(path, version=2)
    with pytest.raises(ValueError, match="s has format 2 and this manyeyes reads format 1: upgrade manyeyes"):
        open_population(path)
    change_meta(path, version=0)
    with pytest.raises(ValueError, match="s has format 0 and this manyeyes reads format 1: prepare it again"):
        open_population(path)
    change_meta(path, version=1)
    open_population(path)
    os.truncate(path / "images.npy", 200)
    with pytest.raises(ValueError, match=r"images.npy has 200 bytes instead of 416: copy the store again, or prepare"):
        open_population(path)
    (path / "images.npy").unlink()
    with pytest.raises(ValueError, match=r"images.npy does not exist: copy the store again"):
        open_population(path)
    (path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta.json is damaged: copy the store again, or prepare it again"):
        open_population(path)


@pytest.mark.parametrize("name", ["images.jpegs", "offsets.npy", "examples.parquet"])
def test_a_changed_byte_is_found(tmp_path: Path, manifest: Manifest, name: str) -> None:
    write_store(manifest, tmp_path / "s", 8, encoding="jpeg")
    verify(tmp_path / "s")
    data = bytearray((tmp_path / "s" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "s" / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is damaged: copy the store again, or prepare it again"):
        verify(tmp_path / "s")
