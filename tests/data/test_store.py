"""A store: what is written is read, in every order and from any folder."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.verify import verify
from manyeyes.data.store.writer import write_store
from tests.data.manifests import NUM_IMAGES, folder_contents, small_manifest


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_what_is_written_is_read(tmp_path: Path, manifest: Manifest, encoding: str) -> None:
    write_store(manifest, tmp_path / "s", 8, encoding=encoding)
    population = open_population(tmp_path / "s")
    readable = np.flatnonzero(manifest.image % 50 != 0)
    assert len(population) == len(readable)
    assert population.user_names is not None
    assert population.user_names.tolist() == sorted(set(manifest.users.tolist()))
    index = {name: number for number, name in enumerate(manifest.columns["image_id"].tolist())}
    source = np.array([index[name] for name in np.asarray(population.columns["image_id"]).tolist()])
    np.testing.assert_array_equal(np.sort(source), readable)
    np.testing.assert_array_equal(
        population.user_names[population.owners(np.arange(len(population)))], manifest.users[source]
    )
    for name in ("split", "latitude"):
        expected = manifest.split if name == "split" else manifest.columns[name]
        np.testing.assert_array_equal(population.columns[name], expected[source])
    for task in ("single", "multi"):
        labels, expected_labels = population.task(task).labels, manifest.labels[task].take(source)
        np.testing.assert_array_equal(np.stack(labels.nonzero()), np.stack(expected_labels.nonzero()))
        assert labels.classes == manifest.labels[task].classes
    pixels = population.pixels(np.arange(len(population)))
    assert pixels.shape == (len(readable), 8, 8, 3)
    np.testing.assert_allclose(pixels[:, 3, 3, 1], manifest.image[source] % 251, atol=1 if encoding == "jpeg" else 0)


def test_the_first_task_is_the_default_and_another_can_be_chosen(tmp_path: Path, manifest: Manifest) -> None:
    write_store(manifest, tmp_path / "s", 8)
    assert open_population(tmp_path / "s").classes == tuple("abcdefg")
    assert open_population(tmp_path / "s", "multi").classes == ("x", "y", "z")
    with pytest.raises(ValueError, match="no labels called 'fine': choose single, multi"):
        open_population(tmp_path / "s", "fine")


def test_the_summary_counts(tmp_path: Path, manifest: Manifest) -> None:
    missing = -(-NUM_IMAGES // 50)
    summary = write_store(manifest, tmp_path / "s", 8)
    assert (summary.users, summary.images) == (60, NUM_IMAGES - missing)
    assert (summary.examples, summary.unreadable_images) == (NUM_IMAGES - missing, missing)
    assert summary.problems == {"missing": missing}
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "s").iterdir()}
    assert summary.bytes == sizes["images.npy"] + sizes["examples.parquet"] + sizes["checksums.npy"]


def test_numpy_opens_the_images(tmp_path: Path) -> None:
    write_store(small_manifest(), tmp_path / "s", 4)
    images = np.load(tmp_path / "s" / "images.npy", mmap_mode="r")
    assert images[:, 0, 0, 0].tolist() == [1, 3, 5, 0, 2, 4]  # user a, then user b


def test_numbered_users_keep_their_order(tmp_path: Path) -> None:
    write_store(small_manifest(users=np.array([10, 2, 10, 2, 10, 2])), tmp_path / "s", 4)
    assert list(map(open_population(tmp_path / "s").user_name, range(2))) == ["2", "10"]


def test_examples_without_a_user_belong_to_one_named_after_their_split(tmp_path: Path) -> None:
    users = np.array(["a", "", "test", "", "", "b"])
    split = np.array(["train", "test", "train", "val", "test", "train"])
    write_store(small_manifest(users=users, split=split), tmp_path / "s", 4)
    population = open_population(tmp_path / "s")
    assert dict(zip(map(population.user_name, range(5)), population.num_examples.tolist(), strict=True)) == {
        "a": 1,
        "b": 1,
        "test": 1,
        "test_": 2,
        "val": 1,
    }


def test_an_image_of_two_users_is_stored_once(tmp_path: Path) -> None:
    write_store(small_manifest(image=np.array([3, 3, 1, 1, 0, 3])), tmp_path / "s", 4)
    population = open_population(tmp_path / "s")
    assert len(population.images) == 3
    assert population.pixels(np.arange(6))[:, 0, 0, 0].tolist() == [3, 1, 3, 3, 1, 0]


def test_a_store_can_be_moved(tmp_path: Path, manifest: Manifest) -> None:
    write_store(manifest, tmp_path / "s", 8)
    (tmp_path / "s").rename(tmp_path / "moved")
    assert str(tmp_path).encode() not in b"".join(folder_contents(tmp_path / "moved").values())
    verify(tmp_path / "moved")
    assert open_population(tmp_path / "moved").pixels(np.arange(5)).shape == (5, 8, 8, 3)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_images_can_be_sent_to_another_process(tmp_path: Path, manifest: Manifest, encoding: str) -> None:
    write_store(manifest, tmp_path / "s", 8, encoding=encoding)
    population = open_population(tmp_path / "s")
    unpickled = pickle.loads(pickle.dumps(population))
    np.testing.assert_array_equal(unpickled.pixels(np.arange(9)), population.pixels(np.arange(9)))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
@pytest.mark.parametrize("min_bytes_for_threads", [1, 10**9])
def test_rows_in_any_order_are_those_of_the_array(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, encoding: str, min_bytes_for_threads: int
) -> None:
    monkeypatch.setattr("manyeyes.data.store.images.MIN_BYTES_FOR_THREADS", min_bytes_for_threads)
    write_store(manifest, tmp_path / "s", 8, encoding=encoding)
    images = open_population(tmp_path / "s").images
    pixels = images[:]
    assert pixels.shape == images.shape == (NUM_IMAGES, 8, 8, 3)
    rng = np.random.default_rng(0)
    for rows in (
        rng.integers(NUM_IMAGES, size=300),
        np.arange(40, 90),
        np.array([], np.int64),
        np.array([[3, 3], [2, 1]]),
    ):
        np.testing.assert_array_equal(images[rows], pixels[rows])
    np.testing.assert_array_equal(images[4], pixels[4])
    for row in (-1, NUM_IMAGES):
        with pytest.raises(IndexError, match=f"rows are {row} to {row}: give rows from 0 to {NUM_IMAGES - 1}"):
            images[np.array([row])]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_the_number_of_processes_changes_nothing(tmp_path: Path, manifest: Manifest, encoding: str) -> None:
    for processes in (1, 2):
        write_store(manifest, tmp_path / str(processes), 8, encoding=encoding, processes=processes)
    assert folder_contents(tmp_path / "1") == folder_contents(tmp_path / "2")
