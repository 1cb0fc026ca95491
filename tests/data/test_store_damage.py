"""A store that is not whole, of another format or changed says so, and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store import reader as store
from tests.data.manifests import few


def change(path: Path, **values: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | values))


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(ValueError, match="s is no store: make one with manyeyes data prepare"):
        store.open(path)
    store.write(few(), path, 4)
    change(path, version=2)
    with pytest.raises(ValueError, match="s has format 2 and this manyeyes reads format 1: upgrade manyeyes"):
        store.open(path)
    change(path, version=0)
    with pytest.raises(ValueError, match="s has format 0 and this manyeyes reads format 1: prepare it again"):
        store.open(path)
    change(path, version=1)
    store.open(path)
    os.truncate(path / "images.npy", 200)
    with pytest.raises(ValueError, match=r"images.npy has 200 bytes instead of 416: copy the store again, or prepare"):
        store.open(path)
    (path / "images.npy").unlink()
    with pytest.raises(ValueError, match=r"images.npy is not there: copy the store again"):
        store.open(path)
    (path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta.json is damaged: copy the store again, or prepare it anew"):
        store.open(path)


@pytest.mark.parametrize("name", ["images.jpegs", "offsets.npy", "examples.parquet"])
def test_a_changed_byte_is_found(tmp_path: Path, given: Manifest, name: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding="jpeg")
    store.verify(tmp_path / "s")
    data = bytearray((tmp_path / "s" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "s" / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is damaged: copy the store again, or prepare it anew"):
        store.verify(tmp_path / "s")
