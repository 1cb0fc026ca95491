"""A store that is incomplete, damaged or of another format gives an error that says what to do."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store import checksums
from manyeyes.data.store.checksums import FIX
from manyeyes.data.store.meta import meta_text
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.verify import add_checksums, find_damage, verify
from manyeyes.data.store.writer import write_store
from tests.damage import flip_bit
from tests.data.manifests import folder_contents, small_manifest


def change_meta(path: Path, **values: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(meta_text(meta | values))


def test_the_error_of_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(
        ValueError, match=r"No prepared dataset at .*s: create one with `manyeyes data prepare NAME --raw DIR`"
    ):
        open_population(path)
    write_store(small_manifest(), path, 4)
    change_meta(path, version=3)
    with pytest.raises(ValueError, match="s has format 3 and this manyeyes reads format 2: upgrade manyeyes"):
        open_population(path)
    change_meta(path, version=0)
    with pytest.raises(ValueError, match="s has format 0 and this manyeyes reads format 2: prepare it again"):
        open_population(path)
    change_meta(path, version=2)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images.jpegs", "offsets.npy", "examples.parquet", "checksums.npy"])
def test_a_changed_byte_is_found(tmp_path: Path, manifest: Manifest, name: str) -> None:
    write_store(manifest, tmp_path / "s", 8, encoding="jpeg")
    verify(tmp_path / "s")
    flip_bit(tmp_path / "s" / name, 4 * (tmp_path / "s" / name).stat().st_size)
    with pytest.raises(ValueError, match=rf"{name} is damaged.*: copy the store again, or prepare it again"):
        verify(tmp_path / "s")


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_a_changed_bit_is_refused_when_its_part_is_used_and_found_by_verify(
    tmp_path: Path, manifest: Manifest, encoding: str
) -> None:
    path = tmp_path / "s"
    write_store(manifest.take(np.arange(60)), path, 8, encoding=encoding)
    meta = json.loads((path / "meta.json").read_text())
    expected = read_all(path)
    rng = np.random.default_rng(0)
    for name in (*meta["bytes"], "meta.json"):
        data = (path / name).read_bytes()
        for bit in rng.choice(8 * len(data), 15, replace=False).tolist():
            flip_bit(path / name, bit)
            message = error_of(read_all, path)
            if message:
                assert name in message or name == "meta.json", (name, bit, message)
                assert find_damage(path), (name, bit)
            else:  # only the white space of meta.json
                assert (name, read_all(path)) == ("meta.json", expected), bit
            (path / name).write_bytes(data)


def test_an_undamaged_image_is_read_beside_a_damaged_one_which_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_store(small_manifest(), path, 4)
    flip_bit(path / "images.npy", 8 * (128 + 48 * 2))  # the first byte of image 2
    images = open_population(path).images
    assert images[np.array([0, 1, 3])].shape == (3, 4, 4, 3)
    with pytest.raises(ValueError, match=r"images.npy is damaged: image 2 has another checksum: copy the store again"):
        images[np.array([1, 2])]
    assert find_damage(path) == [f"{path / 'images.npy'} is damaged (1 images: 2): {FIX}"]


def test_an_image_is_checked_once_also_by_forked_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_store(small_manifest(), tmp_path / "s", 4)
    images = open_population(tmp_path / "s").images
    calls: list[bytes] = []

    def counted_crc32(data: bytes) -> int:
        calls.append(bytes(data))
        return zlib.crc32(data)

    monkeypatch.setattr(checksums, "zlib", SimpleNamespace(crc32=counted_crc32))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: images[np.arange(3)])
    process.start()
    process.join()
    images[np.array([0, 2, 3])]
    images[np.arange(4)]
    assert len(calls) == 1  # of image 3
    assert pickle.loads(pickle.dumps(images))[np.array([5])].shape == (1, 4, 4, 3)


def test_a_store_of_the_format_without_checksums_is_read_with_a_warning_and_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_store(small_manifest(), path, 4)
    new = folder_contents(path)
    meta = json.loads((path / "meta.json").read_text())
    for table in (meta["bytes"], meta["crc32"]):
        del table["checksums.npy"]
    del meta["checksum"]
    (path / "checksums.npy").unlink()
    (path / "meta.json").write_text(json.dumps(meta | {"version": 1}))
    with pytest.warns(
        UserWarning, match="s has no checksums of its images: `manyeyes data verify .*s --add-checksums`"
    ):
        images = open_population(path).images[np.arange(6)]
    assert images[:, 0, 0, 0].tolist() == [1, 3, 5, 0, 2, 4]
    assert add_checksums(path)
    assert not add_checksums(path)
    assert {name: data for name, data in folder_contents(path).items() if name != "meta.json"} == {
        name: data for name, data in new.items() if name != "meta.json"
    }
    assert json.loads((path / "meta.json").read_text())["crc32"] == json.loads(new["meta.json"])["crc32"]
    assert find_damage(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bytes", "crc32", "tasks", "encoding", "shape", "version"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"a": "b"}], ids=str)
def test_metadata_without_a_key_or_of_another_type_is_damaged(tmp_path: Path, name: str, value: Any) -> None:
    write_store(small_manifest(), tmp_path / "s", 4)
    if (name, value) != ("version", 3):
        change_meta(tmp_path / "s", **{name: value})
        with pytest.raises(ValueError, match=r"meta.json is damaged: copy the store again"):
            open_population(tmp_path / "s")


def read_all(path: Path) -> dict[str, Any]:
    """Return all that a store contains."""
    population = open_population(path)
    columns = {name: column for name, column in population.columns.items() if isinstance(column, np.ndarray)}
    labels = {name: population.task(name).labels for name in population.columns.keys() - columns.keys()}
    return {
        "pixels": population.pixels(np.arange(len(population))).tolist(),
        "users": [population.user_name(user) for user in range(len(population.user_ids))],
        "offsets": population.offsets.tolist(),
        **{name: column.tolist() for name, column in columns.items()},
        **{name: ([part.tolist() for part in task.nonzero()], task.classes) for name, task in labels.items()},
    }


def error_of(function: Callable[[Path], object], path: Path) -> str:
    try:
        function(path)
    except ValueError as error:
        return str(error)
    return ""
