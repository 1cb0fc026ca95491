"""iNaturalist's splits: from both releases and constructed, on files written by hand and on synthetic ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.datasets.inaturalist import MAX_PER_CELL, make_split, read_manifest, write_synthetic
from manyeyes.data.datasets.released_splits import locate_images, read_released, sample_per_class
from manyeyes.data.manifest import Manifest
from manyeyes.data.registry import dataset
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SYNTHETIC = SyntheticImages(users=250, size=32)


@pytest.fixture(scope="module")
def synthetic_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("inaturalist")
    write_synthetic(SYNTHETIC, raw)
    return raw


@pytest.fixture(scope="module")
def class_names() -> dict[bytes, str]:
    """Return the class of each synthetic image by the bytes of its file."""
    population = make_synthetic(SYNTHETIC)
    examples = np.arange(len(population))
    return {
        simplejpeg.encode_jpeg(pixels, quality=95): population.classes[label]
        for pixels, label in zip(population.pixels(examples), population.labels.nonzero()[1], strict=True)
    }


def put(raw: Path, **files: str) -> None:
    """Write files by their names without suffix: images with these contents if the name is one letter, else tables."""
    for name, content in files.items():
        path = raw / f"train_val_images/Aves/Bird/{name}.jpg" if len(name) == 1 else raw / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def rows(manifest: Manifest) -> set[tuple[str, str, str, str]]:
    """Return (image, user, split, class) of every example."""
    labels = manifest.labels["class"]
    assert isinstance(labels, SingleLabels)
    names = [labels.classes[i] for i in labels.ids]
    return set(
        zip(manifest.columns["image_id"].tolist(), manifest.users.tolist(), manifest.split.tolist(), names, strict=True)
    )


def annotate(raw: Path, split: str, images: list[tuple[int, str, int]], locations: list[dict[str, Any]]) -> None:
    annotations = {
        "images": [{"id": i, "file_name": f"train_val_images/Aves/Bird/{name}.jpg"} for i, name, _ in images],
        "annotations": [{"image_id": i, "category_id": c} for i, _, c in reversed(images)],
        "categories": [{"id": c, "name": f"Bird {c}"} for c in (7, 9)],
    }
    raw.mkdir(exist_ok=True)
    (raw / f"{split}2017.json").write_text(json.dumps(annotations))
    (raw / f"{split}2017_locations.json").write_text(json.dumps(locations))


SPLIT = "user_id,image_id,class,label\n12,a,1,Wren\n12,b,0,Crow\n7,c,1,Wren\n"
TEST = "image_id,class,label\nd,0,Crow\n"


def test_a_released_split_is_read_unchanged(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="", b="", c="", d="")
    manifest = read_manifest(tmp_path)
    assert rows(manifest) == {
        ("a", "12", "train", "Wren"),
        ("b", "12", "train", "Crow"),
        ("c", "7", "train", "Wren"),
        ("d", "", "test", "Crow"),
    }
    assert manifest.labels["class"].classes == ("Crow", "Wren")


def test_each_image_is_read_from_its_own_file(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="is a", b="is b", c="is c", d="is d")
    manifest = read_manifest(tmp_path)
    for example, name in enumerate(manifest.columns["image_id"]):
        assert manifest.source.read(int(manifest.image[example])) == f"is {name}".encode()


def test_images_are_found_in_linked_folders(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k="user_id,image_id,class\nann,a,0\n", test="image_id,class\n", a="photo")
    (tmp_path / "train_val_images" / "Aves").rename(tmp_path / "disk")
    (tmp_path / "train_val_images" / "Aves").symlink_to(tmp_path / "disk")
    assert read_manifest(tmp_path).source.read(0) == b"photo"


def test_splits_may_be_in_the_folders_of_their_archives(tmp_path: Path) -> None:
    put(tmp_path / "raw", a="", b="", c="", d="")
    put(tmp_path / "splits" / "inaturalist-geo", federated_train_geo_3k=SPLIT, test=TEST)
    assert len(read_manifest(tmp_path / "raw", split="geo_3k", splits=tmp_path / "splits")) == 4


def test_the_column_of_a_split_contains_its_users_and_na_is_not_a_client(tmp_path: Path) -> None:
    table = "image_id,class,label,user_120k,geo_100\na,0,Crow,12,NA\nb,1,Wren,12,89c\nc,1,Wren,7,89c\n"
    put(tmp_path, iNaturalist_train=table, iNaturalist_test=TEST, a="", b="", c="", d="")
    manifest = read_manifest(tmp_path, split="geo_100")
    assert {(image, user) for image, user, *_ in rows(manifest)} == {("b", "89c"), ("c", "89c"), ("d", "")}
    assert manifest.notes["training images without a client, left out"]["count"] == 1
    assert len(read_manifest(tmp_path)) == 4


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="", b="")
    manifest = read_manifest(tmp_path)
    assert manifest.columns["image_id"].tolist() == ["a", "b"]
    assert manifest.notes["coverage"] == {
        "train": {"listed": 3, "found": 2},
        "test": {"listed": 1, "found": 0},
        "users": {"listed": 2, "found": 1},
    }
    assert manifest.notes["images without a file, left out"] == {"count": 2, "first": ["c", "d"]}


def test_an_image_listed_twice_is_kept_once_and_in_train(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST + "a,1,Wren\n", a="", b="", c="", d="")
    manifest = read_manifest(tmp_path)
    assert manifest.split[manifest.columns["image_id"] == "a"].tolist() == ["train"]
    assert manifest.notes["duplicate image ids, left out"] == {"count": 1, "first": ["a"]}


@pytest.mark.parametrize(
    ("files", "split", "message"),
    [
        ({}, "user", r"Unknown split of iNaturalist 'user': choose user_120k, geo_30k, .*geo_100"),
        ({}, "geo_1k", r"has no federated_train_geo_1k.csv or .* or iNaturalist_train.csv: download"),
        ({"federated_train_user_120k": SPLIT}, "user_120k", r"test.csv does not exist: check the path"),
        (
            {"federated_train_user_120k": "user,image_id\n1,a\n", "test": TEST},
            "user_120k",
            r"has no column 'user_id', only user, image_id: give the right file",
        ),
        (
            {"federated_train_user_120k": "", "test": TEST},
            "user_120k",
            r"cannot be read \(Empty CSV file\): download it again",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,2\n", "test": TEST},
            "user_120k",
            r"cannot be read \(CSV parse error",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,e,x,Owl\n", "test": TEST},
            "user_120k",
            r"has class 'x': a class is a number",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,e,0,Owl\n", "test": TEST},
            "user_120k",
            r"give one class several labels",
        ),
        (
            {"federated_train_user_120k": SPLIT, "test": TEST},
            "user_120k",
            r"train_val_images does not exist: extract t",
        ),
        ({"federated_train_user_120k": SPLIT, "test": TEST, "x": ""}, "user_120k", r"none of the 3 training images"),
        (
            {
                "iNaturalist_train": "image_id,class,user_120k\na,0,NA\n",
                "iNaturalist_test": "image_id,class\n",
                "a": "",
            },
            "user_120k",
            r"No training example of inaturalist user_120k has a client",
        ),
    ],
)
def test_invalid_splits_raise_one_sentence(tmp_path: Path, files: dict[str, str], split: str, message: str) -> None:
    put(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as error:
        read_manifest(tmp_path, split=split)
    assert "\n" not in str(error.value)


def by_hand(raw: Path) -> None:
    """Write two training images of class 7 and three of class 9, by two users, one image without a location."""
    images = [(0, "a", 9), (1, "b", 7), (2, "c", 9), (3, "d", 7), (4, "e", 9)]
    locations = [{"id": i, "lat": 47.0, "lon": 8.5, "user_id": 50 + i % 2, "date": None} for i in (4, 1, 2, 0)]
    annotate(raw, "train", images, [*locations, {"id": 3, "lat": None, "lon": None, "user_id": None, "date": None}])
    annotate(raw, "val", [(8, "f", 7), (9, "g", 9)], [])
    put(raw, **dict.fromkeys("abcdefg", ""))


def test_a_constructed_split_joins_annotations_and_locations_by_image(tmp_path: Path) -> None:
    by_hand(tmp_path)
    manifest = read_manifest(tmp_path, construct=True, per_class=3)
    assert rows(manifest) == {
        ("a", "50", "train", "Bird 9"),
        ("c", "50", "train", "Bird 9"),
        ("e", "50", "train", "Bird 9"),
        ("g", "", "test", "Bird 9"),  # the class of f has too few images
    }
    assert manifest.columns["latitude"][:3].tolist() == [47.0] * 3


def test_an_image_without_a_user_or_location_has_no_client(tmp_path: Path) -> None:
    by_hand(tmp_path)
    for split in ("user_120k", "geo_100"):
        manifest = read_manifest(tmp_path, construct=True, per_class=2, split=split)
        train = [name for name, _, name_split, _ in rows(manifest) if name_split == "train"]
        assert len(train) == 3
        assert "d" not in train
        assert manifest.notes["training images without a client, left out"]["count"] == 1


def test_images_at_one_location_are_one_client(tmp_path: Path) -> None:
    by_hand(tmp_path)
    manifest = read_manifest(tmp_path, construct=True, per_class=2, split="geo_300")
    assert len({user for _, user, split, _ in rows(manifest) if split == "train"}) == 1


def test_classes_below_a_hundred_images_are_dropped_by_default(tmp_path: Path) -> None:
    by_hand(tmp_path)
    with pytest.raises(ValueError, match=r"No class in .* has 100 training images; the published files have 1,203"):
        read_manifest(tmp_path, construct=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train2017.json", None, r"has no train2017.json: extract train_val2017.zip and inat2017_locations.zip there"),
        ("val2017_locations.json", None, r"has no val2017_locations.json: extract"),
        ("train2017.json", '{"images": [', r"train2017.json is not valid JSON \(.*\): download it again"),
        ("train2017.json", '{"images": []}', r"are not the published ones \(KeyError: 'annotations'\)"),
        (
            "train2017_locations.json",
            '{"a": 1}',
            r"train2017_locations.json in .* are not the published ones",
        ),
    ],
)
def test_invalid_annotations_raise_one_sentence(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    by_hand(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path, construct=True, per_class=2)


@given(st.lists(st.integers(0, 6), max_size=300), st.integers(1, 40), st.integers(0, 5))
def test_balancing_takes_the_same_number_of_every_class_that_has_as_many(
    classes: list[int], count: int, seed: int
) -> None:
    ids = np.array(classes, np.int64)
    chosen = sample_per_class(ids, count, np.random.default_rng(seed), min_count=count)
    assert len(set(chosen.tolist())) == len(chosen)
    sampled = [classes[i] for i in chosen]
    assert {c: sampled.count(c) for c in sampled} == {c: count for c in set(classes) if classes.count(c) >= count}


@given(st.lists(st.integers(0, 6), max_size=200), st.integers(1, 40))
def test_a_sample_without_a_minimum_takes_all_of_a_small_class(classes: list[int], limit: int) -> None:
    sampled = [classes[i] for i in sample_per_class(np.array(classes, np.int64), limit, np.random.default_rng(0))]
    assert all(sampled.count(c) == min(limit, classes.count(c)) for c in set(classes))


def test_every_image_of_a_class_is_equally_likely() -> None:
    ids = np.zeros(10, np.int64)
    sampled = np.concatenate([sample_per_class(ids, 3, np.random.default_rng(seed)) for seed in range(2000)])
    assert abs(np.bincount(sampled) - 600).max() < 100  # five standard deviations of a binomial


@pytest.mark.slow
def test_the_choice_of_images_depends_on_the_seed_only(synthetic_raw: Path) -> None:
    first, repeated, other_seed = (
        set(read_manifest(synthetic_raw, construct=True, seed=seed).columns["image_id"].tolist()) for seed in (0, 0, 1)
    )
    assert first == repeated
    assert first != other_seed


@pytest.mark.parametrize("split", ["user_120k", "geo_100"])
@pytest.mark.slow
def test_a_constructed_split_has_a_hundred_images_of_each_class(synthetic_raw: Path, split: str) -> None:
    manifest = make_split(synthetic_raw, make_rng(0, "inaturalist"), 100, MAX_PER_CELL[split])
    counts = manifest.labels["class"].take(np.flatnonzero(manifest.split == "train")).counts()
    num_clientless = manifest.notes.get("training images without a client, left out", {"count": 0})["count"]
    assert counts.sum() + num_clientless == 100 * len(counts)
    assert counts.max() <= 100
    assert len(counts) < SYNTHETIC.coarse  # some classes have fewer images


@pytest.mark.slow
def test_no_constructed_cell_has_more_images_than_its_limit(synthetic_raw: Path) -> None:
    manifest = read_manifest(synthetic_raw, construct=True, split="geo_100")
    assert np.unique(manifest.users[manifest.split == "train"], return_counts=True)[1].max() <= 100
    assert manifest.notes["training images without a client, left out"]["count"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"split": "geo_300"}, {"construct": True}, {"construct": True, "split": "geo_100"}]
)
def test_every_synthetic_image_has_its_own_label(
    synthetic_raw: Path, class_names: dict[bytes, str], options: dict[str, Any]
) -> None:
    manifest = read_manifest(synthetic_raw, **options)
    labels = manifest.labels["class"]
    assert isinstance(labels, SingleLabels)
    for example in range(len(manifest)):
        content = manifest.source.read(int(manifest.image[example]))
        assert class_names[content] == labels.classes[labels.ids[example]]  # type: ignore[index]
    assert manifest.notes["coverage"]["train"]["found"] < manifest.notes["coverage"]["train"]["listed"]


@pytest.fixture(scope="module")
def other_release(synthetic_raw: Path) -> Path:
    """Return the folder of the other release of the synthetic splits: one table with a column for each split."""
    wide = None
    for split in MAX_PER_CELL:
        (path,) = synthetic_raw.glob(f"*/federated_train_{split}.csv")
        table = pd.read_csv(path, dtype=str).rename(columns={"user_id": split})
        wide = table if wide is None else wide.merge(table[["image_id", split]], on="image_id", how="left")
    assert wide is not None
    folder = synthetic_raw / "columns"
    folder.mkdir()
    wide.fillna("NA").to_csv(folder / "iNaturalist_train.csv", index=False)
    shutil.copy(path.with_name("test.csv"), folder / "iNaturalist_test.csv")
    return folder


@pytest.mark.parametrize("split", MAX_PER_CELL)
def test_both_releases_of_a_split_are_equal(synthetic_raw: Path, other_release: Path, split: str) -> None:
    assert rows(read_manifest(synthetic_raw, split=split)) == rows(
        read_manifest(synthetic_raw, split=split, splits=other_release)
    )


def test_the_notes_can_be_written_as_json(synthetic_raw: Path) -> None:
    assert json.loads(json.dumps(read_manifest(synthetic_raw).notes))["split"] == "user_120k"


def test_synthetic_files_may_have_few_users(tmp_path: Path) -> None:
    write_synthetic(replace(SYNTHETIC, users=12), tmp_path)
    assert len(read_manifest(tmp_path)) > 0


def test_columns_are_those_of_the_images_that_exist(tmp_path: Path) -> None:
    put(tmp_path, train=SPLIT, test=TEST)
    manifest = read_released("x", tmp_path / "train.csv", tmp_path / "test.csv")
    columns = {**manifest.columns, "number": np.arange(4)}
    manifest = replace(manifest, columns=columns, notes={"split": "all"})
    manifest = locate_images(manifest, tmp_path, ["", "b.jpg", "", "d.jpg"])
    assert manifest.columns["number"].tolist() == [1, 3]
    assert [manifest.source.name(int(index)) for index in manifest.image] == ["b.jpg", "d.jpg"]


def test_remote_files_have_their_published_names() -> None:
    assert [remote.name for remote in dataset("inaturalist").remote_files] == [
        "inaturalist-user-120k.zip",
        "inaturalist-geo.zip",
        "train_val2017.zip",
        "inat2017_locations.zip",
        "train_val_images.tar.gz",
    ]
