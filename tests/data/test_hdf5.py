"""HDF5 files in the layouts of pfl-research and ml-flair, written here with h5py and read in place."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from manyeyes.core.population import Population
from manyeyes.data.store import hdf5
from manyeyes.data.store.hdf5 import Hdf5Images, open_hdf5

COARSE = {"animal": 0, "food": 1, "plant": 2}
FINE = {"apple": 0, "cat": 1, "oak": 2, "rose": 3}


class Photo(NamedTuple):
    red: int  # identifies the image
    coarse: list[str]
    fine: list[str]

    def labels(self, task: str) -> list[str]:
        return self.coarse if task == "coarse" else self.fine


CONTENT = {
    ("train", "zoe"): [
        Photo(10, ["plant", "food"], ["oak", "apple"]),
        Photo(11, [], []),
        Photo(12, ["animal"], ["cat"]),
    ],
    ("train", "ann"): [Photo(20, ["food"], ["apple"])],
    ("val", "bob"): [Photo(30, ["plant"], ["rose"]), Photo(31, ["plant", "animal"], ["rose", "oak", "cat"])],
    ("test", "cid"): [Photo(40, [], [])],
}


def pixels(reds: list[int]) -> np.ndarray[Any, Any]:
    images = np.zeros((len(reds), 6, 5, 3), np.uint8)
    images[..., 0] = np.array(reds)[:, None, None]
    images[..., 1] = np.arange(6)[:, None]
    images[..., 2] = np.arange(5)
    return images


def write_pfl(path: Path, **storage: Any) -> Path:
    with h5py.File(path, "w") as file:
        for (split, user), photos in CONTENT.items():
            group = file.create_group(f"/{split}/{user}")
            for name, task, index, dtype in (
                ("labels", "coarse", COARSE, np.uint8),
                ("fine_grained_labels", "fine", FINE, np.uint16),
            ):
                pairs = [(k, index[label]) for k, photo in enumerate(photos) for label in photo.labels(task)]
                group[f"{name}_row"] = np.array([k for k, _ in pairs], np.uint16)
                group[f"{name}_col"] = np.array([label for _, label in pairs], dtype)
            group["image_ids"] = np.array([f"id{photo.red}" for photo in photos], dtype="S")
            group.create_dataset("images", data=pixels([photo.red for photo in photos]), **storage)
        file["/metadata/label_mapping"] = json.dumps(COARSE)
        file["/metadata/fine_grained_label_mapping"] = json.dumps(FINE)
    return path


def write_ml_flair(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for (split, user), photos in CONTENT.items():
            group = file.create_group(f"/{split}/{user}")
            group["labels"] = np.array(["|".join(photo.coarse) for photo in photos], dtype="S")
            group["fine_grained_labels"] = np.array(["|".join(photo.fine) for photo in photos], dtype="S")
            group["image_ids"] = np.array([f"id{photo.red}" for photo in photos], dtype="S")
            group.create_dataset("images", data=pixels([photo.red for photo in photos]))
        file["/metadata/label_counter"] = json.dumps({"plant": 3, "animal": 2, "food": 2})
        file["/metadata/fine_grained_label_counter"] = json.dumps({"rose": 2, "oak": 2, "cat": 2, "apple": 2})
    return path


@pytest.fixture(params=["pfl", "pfl compressed", "ml-flair"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "ml-flair":
        return write_ml_flair(tmp_path / "ml.h5")
    storage = {"compression": "gzip", "chunks": (1, 6, 5, 3)} if request.param == "pfl compressed" else {}
    return write_pfl(tmp_path / "pfl.h5", **storage)


def read_content(population: Population) -> dict[tuple[str, str], list[tuple[int, list[str]]]]:
    """Return CONTENT as read from the population."""
    content: dict[tuple[str, str], list[tuple[int, list[str]]]] = {}
    for user in range(len(population.user_ids)):
        for example in population.examples(user):
            split = str(np.asarray(population.columns["split"])[example])
            image = population.pixels(np.array([example]))[0]
            red = int(image[0, 0, 0])
            np.testing.assert_array_equal(image, pixels([red])[0])
            assert np.asarray(population.columns["image_id"])[example] == f"id{red}"
            labels = [population.classes[i] for i in population.labels.nonzero(np.array([example]))[1]]
            content.setdefault((split, population.user_name(user)), []).append((red, labels))
    return content


@pytest.mark.slow
@pytest.mark.parametrize(("task", "classes"), [("coarse", COARSE), ("fine", FINE)])
def test_every_image_has_its_user_split_id_and_labels(path: Path, task: str, classes: dict[str, int]) -> None:
    population = open_hdf5(path, task)
    assert population.classes == tuple(classes)
    expected = {key: [(photo.red, sorted(photo.labels(task))) for photo in photos] for key, photos in CONTENT.items()}
    assert read_content(population) == expected


def test_images_are_indexed_like_an_array(path: Path) -> None:
    images = open_hdf5(path).images
    array = images[:]
    assert isinstance(images, Hdf5Images)
    assert images.shape == array.shape == (7, 6, 5, 3)
    assert images.dtype == array.dtype == np.uint8
    assert len(images) == 7
    assert sorted(array[:, 0, 0, 0].tolist()) == [10, 11, 12, 20, 30, 31, 40]
    for rows in (
        np.array([5, 0, 0, 3]),
        slice(2, 6, 2),
        np.array([[1], [6]]),
        np.arange(7) > 4,
        2,
        -1,
        np.array([], int),
    ):
        np.testing.assert_array_equal(images[rows], array[rows])


def test_a_row_beyond_the_end_is_an_index_error(path: Path) -> None:
    with pytest.raises(IndexError):
        open_hdf5(path).images[np.array([7])]


def test_a_population_can_be_sent_to_another_process_after_reading(path: Path) -> None:
    population = open_hdf5(path)
    before = read_content(population)
    sent = pickle.dumps(population)
    assert len(sent) < 6000  # the index, not the images
    assert read_content(pickle.loads(sent)) == before


def test_splits_are_views_with_their_users(path: Path) -> None:
    population = open_hdf5(path)
    views = {name: population.split(name) for name in ("train", "val", "test")}
    users = {name: {view.user_name(user) for user in range(len(view.user_ids))} for name, view in views.items()}
    assert users == {"train": {"ann", "zoe"}, "val": {"bob"}, "test": {"cid"}}
    assert population.split("val").pixels(np.array([1]))[0, 0, 0, 0] == 31


def test_nothing_is_written_next_to_the_file(path: Path) -> None:
    before = path.read_bytes()
    read_content(open_hdf5(path))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_dev_is_val(tmp_path: Path) -> None:
    path = write_pfl(tmp_path / "pfl.h5")
    with h5py.File(path, "a") as file:
        file.move("val", "dev")
    assert open_hdf5(path).split("val").user_names == ["bob"]


def test_a_user_in_two_splits_is_reported(tmp_path: Path) -> None:
    path = write_pfl(tmp_path / "pfl.h5")
    with h5py.File(path, "a") as file:
        file.copy("train/ann", "test/ann")
    with pytest.warns(UserWarning, match="1 users of .* are in two splits"):
        open_hdf5(path)


def test_a_missing_an_invalid_and_a_truncated_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.h5 does not exist"):
        open_hdf5(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.h5 is not an HDF5 file"):
        open_hdf5(tmp_path / "text.h5")
    data = write_pfl(tmp_path / "pfl.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(ValueError, match=r"cut\.h5 is truncated at \d+ bytes"):
        open_hdf5(tmp_path / "cut.h5")


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_pfl, write_ml_flair])
def test_a_file_that_the_library_never_finishes_to_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    data = bytearray(write(tmp_path / "loop.h5").read_bytes())
    data[data.index(b"GCOL") + 8] = 127  # of the size of the heap that has the label mapping or counter
    (tmp_path / "loop.h5").write_bytes(data)
    monkeypatch.setattr(hdf5, "MAX_SILENT_SECONDS", 0.5)
    with pytest.raises(ValueError, match=r"loop\.h5 cannot be read \(no answer for 0\.5 s\): copy or make it again"):
        open_hdf5(tmp_path / "loop.h5")


def test_a_file_of_another_layout_is_refused_with_its_content(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["examples/u1/pixels"] = np.zeros(3)
    with pytest.raises(ValueError, match="contains examples and no label mapping"):
        open_hdf5(tmp_path / "other.h5")


@pytest.mark.parametrize("metadata", ["mapping", "counter"])
def test_a_file_grouped_by_image_is_refused(tmp_path: Path, metadata: str) -> None:
    with h5py.File(tmp_path / "central.h5", "w") as file:
        file["train/img1/image"] = pixels([1])[0]
        file["train/img1/labels"] = "plant|food"
        file["train/img1/user_id"] = "ann"
        file[f"metadata/label_{metadata}"] = json.dumps({"plant": 1, "food": 1})
    with pytest.raises(ValueError, match="grouped by image"):
        open_hdf5(tmp_path / "central.h5")


def replace_dataset(path: Path, name: str, value: Any) -> Path:
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train/zoe/images", None, "train/zoe in .* has no images"),
        ("train/zoe/labels_row", None, "train/zoe in .* has no labels_row"),
        ("train/zoe/images", np.zeros((3, 6, 5, 3), np.float32), "train/zoe .* has float32 images"),
        ("train/zoe/images", np.zeros((3, 7, 5, 3), np.uint8), "of one size"),
        ("train/zoe/image_ids", np.array([b"a", b"b"]), "train/zoe in .* has 3 images but 2 ids"),
        ("train/zoe/labels_row", np.array([0, 0, 3], np.uint16), "images or classes that it does not have"),
        ("train/zoe/labels_col", np.array([0, 0, 3], np.uint8), "images or classes that it does not have"),
        ("train/zoe/labels_col", np.array([0, 0], np.uint8), "images or classes that it does not have"),
        ("metadata/label_mapping", json.dumps({"animal": 1, "food": 2, "plant": 3}), "does not count from 0"),
    ],
)
def test_an_inconsistent_pfl_file_is_refused(tmp_path: Path, name: str, value: Any, message: str) -> None:
    path = replace_dataset(write_pfl(tmp_path / "pfl.h5"), name, value)
    with pytest.raises(ValueError, match=message):
        open_hdf5(path)


@pytest.mark.parametrize(
    "link", [h5py.ExternalLink("nowhere.h5", "/x"), h5py.SoftLink("/nowhere"), h5py.SoftLink("/train/zoe")], ids=str
)
def test_a_broken_link_is_refused_with_its_file(tmp_path: Path, link: Any) -> None:
    path = replace_dataset(write_pfl(tmp_path / "pfl.h5"), "train/zoe/images", link)
    with pytest.raises(ValueError, match=r"pfl\.h5"):
        open_hdf5(path)


def test_integer_user_ids_in_a_file_grouped_by_image_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "central.h5", "w") as file:
        file["train/img1/image"] = pixels([1])[0]
        file["train/img1/user_id"] = 7
        file["metadata/label_counter"] = json.dumps({"plant": 1})
    with pytest.raises(ValueError, match=r"central\.h5"):
        open_hdf5(tmp_path / "central.h5")


def test_a_label_missing_from_ml_flairs_counter_is_refused(tmp_path: Path) -> None:
    path = replace_dataset(
        write_ml_flair(tmp_path / "ml.h5"), "metadata/label_counter", json.dumps({"food": 2, "plant": 3})
    )
    with pytest.raises(ValueError, match="a label 'animal'"):
        open_hdf5(path)


def test_a_file_without_users_and_an_unknown_task_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file["metadata/label_mapping"] = json.dumps(COARSE)
    with pytest.raises(ValueError, match="no users below"):
        open_hdf5(tmp_path / "empty.h5")
    with pytest.raises(ValueError, match="no task 'medium'"):
        open_hdf5(tmp_path / "empty.h5", "medium")


def test_a_file_that_shrinks_after_opening_raises_an_oserror(tmp_path: Path) -> None:
    path = write_pfl(tmp_path / "pfl.h5")
    images = open_hdf5(path).images
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(OSError, match="has become shorter"):
        images[np.array([0])]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels_row", "labels_col"])
@pytest.mark.parametrize("value", [-1, -1.0, np.nan, 0.5, 200, 2**63])
def test_labels_that_are_no_image_or_class_are_refused(tmp_path: Path, name: str, value: float) -> None:
    path = write_pfl(tmp_path / "flair.hdf5")
    with h5py.File(path, "r+") as file:
        group = file["train/zoe"]
        values = [*group[name][:-1].tolist(), value]
        del group[name]
        group[name] = np.array(values)
    with pytest.raises(ValueError, match=r"flair.hdf5 has labels of images or classes that it does not have"):
        open_hdf5(path)
