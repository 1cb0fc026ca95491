"""A store: what goes in comes out, in every order and wherever it lies."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from manyeyes.data.manifest import Manifest
from manyeyes.data.store import reader as store
from tests.data.manifests import COUNT, contents, few


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_what_goes_in_comes_out(tmp_path: Path, given: Manifest, encoding: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    people = store.open(tmp_path / "s")
    kept = np.flatnonzero(given.image % 50 != 0)
    assert len(people) == len(kept)
    assert people.user_names is not None
    assert people.user_names.tolist() == sorted(set(given.users.tolist()))
    where = {name: place for place, name in enumerate(given.columns["image_id"].tolist())}
    source = np.array([where[name] for name in np.asarray(people.columns["image_id"]).tolist()])
    np.testing.assert_array_equal(np.sort(source), kept)
    np.testing.assert_array_equal(people.user_names[people.owners(np.arange(len(people)))], given.users[source])
    for name in ("split", "latitude"):
        expected = given.split if name == "split" else given.columns[name]
        np.testing.assert_array_equal(people.columns[name], expected[source])
    for task in ("single", "multi"):
        found, expected_labels = people.task(task).labels, given.labels[task].take(source)
        np.testing.assert_array_equal(np.stack(found.nonzero()), np.stack(expected_labels.nonzero()))
        assert found.classes == given.labels[task].classes
    pixels = people.pixels(np.arange(len(people)))
    assert pixels.shape == (len(kept), 8, 8, 3)
    np.testing.assert_allclose(pixels[:, 3, 3, 1], given.image[source] % 251, atol=1 if encoding == "jpeg" else 0)


def test_the_first_task_is_the_default_and_another_can_be_asked_for(tmp_path: Path, given: Manifest) -> None:
    store.write(given, tmp_path / "s", 8)
    assert store.open(tmp_path / "s").classes == tuple("abcdefg")
    assert store.open(tmp_path / "s", "multi").classes == ("x", "y", "z")
    with pytest.raises(ValueError, match="no labels are called 'fine': this population has single, multi"):
        store.open(tmp_path / "s", "fine")


def test_the_summary_counts(tmp_path: Path, given: Manifest) -> None:
    missing = -(-COUNT // 50)
    summary = store.write(given, tmp_path / "s", 8)
    assert (summary.users, summary.images) == (60, COUNT - missing)
    assert (summary.examples, summary.unreadable_images) == (COUNT - missing, missing)
    assert summary.problems == {"missing": missing}
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "s").iterdir()}
    assert summary.bytes == sizes["images.npy"] + sizes["examples.parquet"]


def test_numpy_opens_the_images(tmp_path: Path) -> None:
    store.write(few(), tmp_path / "s", 4)
    images = np.load(tmp_path / "s" / "images.npy", mmap_mode="r")
    assert images[:, 0, 0, 0].tolist() == [1, 3, 5, 0, 2, 4]  # user a, then user b


def test_numbered_users_keep_their_order(tmp_path: Path) -> None:
    store.write(few(users=np.array([10, 2, 10, 2, 10, 2])), tmp_path / "s", 4)
    assert list(map(store.open(tmp_path / "s").user_name, range(2))) == ["2", "10"]


def test_examples_of_nobody_belong_to_a_user_called_as_their_split(tmp_path: Path) -> None:
    users = np.array(["a", "", "test", "", "", "b"])
    split = np.array(["train", "test", "train", "val", "test", "train"])
    store.write(few(users=users, split=split), tmp_path / "s", 4)
    people = store.open(tmp_path / "s")
    assert dict(zip(map(people.user_name, range(5)), people.num_examples.tolist(), strict=True)) == {
        "a": 1,
        "b": 1,
        "test": 1,
        "test_": 2,
        "val": 1,
    }


def test_an_image_that_two_users_show_is_stored_once(tmp_path: Path) -> None:
    store.write(few(image=np.array([3, 3, 1, 1, 0, 3])), tmp_path / "s", 4)
    people = store.open(tmp_path / "s")
    assert len(people.images) == 3
    assert people.pixels(np.arange(6))[:, 0, 0, 0].tolist() == [3, 1, 3, 3, 1, 0]


def test_a_store_can_be_moved(tmp_path: Path, given: Manifest) -> None:
    store.write(given, tmp_path / "s", 8)
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    assert str(tmp_path).encode() not in b"".join(contents(tmp_path / "elsewhere").values())
    store.verify(tmp_path / "elsewhere")
    assert store.open(tmp_path / "elsewhere").pixels(np.arange(5)).shape == (5, 8, 8, 3)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_images_can_be_sent_to_another_process(tmp_path: Path, given: Manifest, encoding: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    people = store.open(tmp_path / "s")
    again = pickle.loads(pickle.dumps(people))
    np.testing.assert_array_equal(again.pixels(np.arange(9)), people.pixels(np.arange(9)))


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
@pytest.mark.parametrize("ahead", [1, 10**9])
def test_rows_in_any_order_are_those_of_the_array(
    tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch, encoding: str, ahead: int
) -> None:
    monkeypatch.setattr("manyeyes.data.store.images.FEW", ahead)
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    images = store.open(tmp_path / "s").images
    whole = images[:]
    assert whole.shape == images.shape == (COUNT, 8, 8, 3)
    chance = np.random.default_rng(0)
    for rows in (
        chance.integers(COUNT, size=300),
        np.arange(40, 90),
        np.array([], np.int64),
        np.array([[3, 3], [2, 1]]),
    ):
        np.testing.assert_array_equal(images[rows], whole[rows])
    np.testing.assert_array_equal(images[4], whole[4])
    for wrong in ([-1], [COUNT]):
        with pytest.raises(IndexError, match=f"there are {COUNT} images, and rows from"):
            images[np.array(wrong)]


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_the_number_of_processes_changes_nothing(tmp_path: Path, given: Manifest, encoding: str) -> None:
    for processes in (1, 2):
        store.write(given, tmp_path / str(processes), 8, encoding=encoding, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
