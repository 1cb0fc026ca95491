"""Problems of a dataset's files and tables are counted and named, and the rest is stored."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from tests.data.manifests import jpeg, manifest_of_files, small_manifest


def test_a_jpeg_of_the_right_size_is_stored_byte_for_byte(tmp_path: Path) -> None:
    data = {"a.jpg": jpeg(8, quality=40), "b.jpg": jpeg(16)}
    write_store(manifest_of_files(tmp_path / "raw", data), tmp_path / "s", 8, encoding="jpeg")
    blob = (tmp_path / "s" / "images.jpegs").read_bytes()
    first, second = (
        blob[a:b] for a, b in np.lib.stride_tricks.sliding_window_view(np.load(tmp_path / "s/offsets.npy"), 2)
    )
    assert first == data["a.jpg"]
    assert Image.open(io.BytesIO(second)).size == (8, 8)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_a_jpeg_with_extra_bytes_is_prepared_and_read(tmp_path: Path, encoding: str) -> None:
    data, junk = jpeg(8), bytes(range(1, 9))  # decoders warn about it and lose no pixel
    table = data.index(b"\xff\xdb")
    files = {"head.jpg": data[:table] + junk + data[table:], "end.jpg": data[:-2] + junk + data[-2:]}
    write_store(manifest_of_files(tmp_path / "raw", files), tmp_path / "s", 8, encoding=encoding)
    pixels = open_population(tmp_path / "s").pixels(np.arange(2))
    assert np.abs(pixels.astype(int) - np.asarray(Image.open(io.BytesIO(data)))).max() <= 2  # encoded again


def test_every_kind_of_bad_file_is_counted_and_named(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    gray = io.BytesIO()
    Image.new("L", (4, 4)).save(gray, "PNG")
    files = {
        "good.jpg": jpeg(),
        "empty.jpg": b"",
        "text.jpg": b"not found" * 9,
        "cut.jpg": jpeg(64)[:-20],
        "turned.jpg": jpeg(exif=exif),
        "gray.jpg": gray.getvalue(),
        "new\nline.jpg": b"",
    }
    manifest = manifest_of_files(tmp_path / "raw", files)
    (tmp_path / "raw" / "good.jpg").rename(tmp_path / "raw" / "gone.jpg")
    summary = write_store(manifest, tmp_path / "s", 4)
    log = (tmp_path / "s" / "prepare.log").read_text()
    assert log.splitlines() == [
        "missing\tgood.jpg",
        "empty\tempty.jpg",
        "not an image\ttext.jpg",
        "truncated\tcut.jpg",
        "rotated\tturned.jpg",
        "grayscale\tgray.jpg",
        "wrong extension\tgray.jpg",
        "empty\tnew\\nline.jpg",
    ]
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    assert meta["problems"] == summary.problems
    assert (summary.problems["empty"], summary.unreadable_images, summary.examples) == (2, 5, 2)
    assert open_population(tmp_path / "s").image_indices.tolist() == [4, 5]


def test_duplicate_ids_are_reported_and_images_of_two_users_are_not(tmp_path: Path) -> None:
    ids = np.array(["one", "two", "two", "three", "four", "four"])
    image = np.array([0, 1, 2, 3, 4, 4])  # two: two images; four: one image of two users
    summary = write_store(small_manifest(image=image, columns={"image_id": ids}), tmp_path / "s", 4)
    assert (tmp_path / "s" / "prepare.log").read_text() == "duplicate id\ttwo\n"
    assert summary.examples == 6


def test_users_in_two_splits_are_reported_unless_most_are(tmp_path: Path) -> None:
    users = np.array(["a", "a", "b", "b", "c", "c"])
    by_user = np.array(["train", "train", "train", "train", "train", "test"])
    write_store(small_manifest(users=users, split=by_user), tmp_path / "s", 4)
    assert (tmp_path / "s" / "prepare.log").read_text() == "user in two splits\tc\n"
    write_store(small_manifest(users=users, split=np.array(["train", "test"] * 3)), tmp_path / "per_user", 4)
    assert (tmp_path / "per_user" / "prepare.log").read_text() == ""


def test_without_a_size_images_must_have_one_size(tmp_path: Path) -> None:
    data = {"none.jpg": b"", "a.jpg": jpeg(8), "b.jpg": jpeg(16)}
    manifest = manifest_of_files(tmp_path / "raw", data)
    with pytest.raises(
        ValueError, match=r"2 sizes from 8 x 8 to 16 x 16 pixels; 1 of the 2 that were read have 8 x 8: .* --size 224"
    ):
        write_store(manifest, tmp_path / "s", None)
    assert os.listdir(tmp_path) == ["raw"]
    write_store(manifest, tmp_path / "s", 8)
    write_store(manifest.take(np.arange(2)), tmp_path / "same", None)
    assert open_population(tmp_path / "same").image_shape == (8, 8, 3)


def test_a_dataset_without_a_readable_image_is_refused(tmp_path: Path) -> None:
    manifest = manifest_of_files(tmp_path / "raw", {"a.jpg": b"", "b.jpg": b"x"})
    with pytest.raises(ValueError, match=r"None of the 2 images can be read; the first, a.jpg, is empty"):
        write_store(manifest, tmp_path / "s", 4)
    assert os.listdir(tmp_path) == ["raw"]
