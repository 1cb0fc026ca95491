"""Landmarks' splits: released, and constructed with the paper's filters, on files by hand and synthetic ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import SingleLabels
from manyeyes.data.datasets.landmarks import (
    Filters,
    filter_images,
    make_split,
    read_manifest,
    write_synthetic,
)
from manyeyes.data.manifest import Manifest
from manyeyes.data.registry import dataset
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SYNTHETIC = SyntheticImages(users=400, size=32, alpha=30)
SMALL = Filters(3, 2, 2, 2, max_test_images_per_landmark=1)


@pytest.fixture(scope="module")
def synthetic_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("landmarks")
    write_synthetic(SYNTHETIC, raw)
    return raw


@pytest.fixture(scope="module")
def class_ids() -> dict[bytes, int]:
    """Return the class of each synthetic image by the bytes of its file."""
    population = make_synthetic(SYNTHETIC)
    examples = np.arange(len(population))
    return {
        simplejpeg.encode_jpeg(pixels, quality=95): int(label)
        for pixels, label in zip(population.pixels(examples), population.labels.nonzero()[1], strict=True)
    }


def put(raw: Path, *names: str, layout: str = "train/{0}/{1}/{2}/{id}.jpg", **files: str) -> None:
    """Write images, which contain their own names, and tables."""
    paths = {layout.format(*name[:3], id=name): name for name in names}
    for path, content in (paths | {f"{name}.csv": text for name, text in files.items()}).items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_text(content)


def rows(manifest: Manifest) -> set[tuple[str, str, str, str]]:
    """Return (image, user, split, class) of every example."""
    labels = manifest.labels["class"]
    assert isinstance(labels, SingleLabels)
    names = [labels.classes[i] for i in labels.ids]
    return set(
        zip(manifest.columns["image_id"].tolist(), manifest.users.tolist(), manifest.split.tolist(), names, strict=True)
    )


SPLIT = 'user_id,image_id,class\n"Ann, of Bern",0a1f,10\nNA,0b1f,2\nNA,0a2f,10\n'
TEST = "image_id,class\n0c3f,2\n"
IMAGES = ("0a1f", "0b1f", "0a2f", "0c3f")


@pytest.mark.parametrize("layout", ["train/{0}/{1}/{2}/{id}.jpg", "{0}/{1}/{2}/{id}.jpg", "images/{id}.jpg"])
def test_a_released_split_is_read_from_any_layout(tmp_path: Path, layout: str) -> None:
    put(tmp_path, *IMAGES, layout=layout, federated_train=SPLIT, test=TEST)
    manifest = read_manifest(tmp_path)
    assert rows(manifest) == {
        ("0a1f", "Ann, of Bern", "train", "10"),
        ("0b1f", "NA", "train", "2"),  # here NA is the name of a user
        ("0a2f", "NA", "train", "10"),
        ("0c3f", "", "test", "2"),
    }
    assert manifest.labels["class"].classes == ("2", "10")
    for example, name in enumerate(manifest.columns["image_id"]):
        assert manifest.source.read(int(manifest.image[example])) == name.encode()


def test_the_small_split_has_other_file_names(tmp_path: Path) -> None:
    put(tmp_path, *IMAGES, mini_gld_train_split=SPLIT, mini_gld_test=TEST)
    assert len(read_manifest(tmp_path, split="23k")) == 4


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, "0b1f", federated_train=SPLIT, test=TEST)
    notes = read_manifest(tmp_path).notes
    assert notes["coverage"] == {
        "train": {"listed": 3, "found": 1},
        "test": {"listed": 1, "found": 0},
        "users": {"listed": 2, "found": 1},
    }
    assert notes["images without a file, left out"] == {"count": 3, "first": ["0a1f", "0a2f", "0c3f"]}


@pytest.mark.parametrize(
    ("options", "files", "message"),
    [
        ({"split": "8k"}, {}, r"Unknown split of Landmarks '8k': choose 160k, 23k"),
        ({}, {}, r"has no federated_train.csv: download it there"),
        ({"split": "23k", "construct": True}, {}, r"construct works with split=160k only"),
        (
            {},
            {"federated_train": SPLIT, "test": TEST},
            r"contains none of the 3 training images of landmarks 160k: extract",
        ),
        (
            {},
            {"federated_train": SPLIT + "x,../../a,1\n", "test": TEST},
            r"has image id '../../a', which is not one of GLD-v2's",
        ),
        ({"construct": True}, {}, r"has no train_clean.csv: download it there"),
        ({"construct": True}, {"train_clean": "landmark_id,images\n1,ab\n"}, r"has no train_attribution.csv"),
        (
            {"construct": True},
            {"train_clean": "landmark_id,images\n1,0a1f\n", "train_attribution": "id,author\n0a1f,Ann\n"},
            r"No landmark and user in .* pass the filters; the published files have 2,028 and 1,262",
        ),
    ],
)
def test_invalid_input_raises_one_sentence(
    tmp_path: Path, options: dict[str, Any], files: dict[str, str], message: str
) -> None:
    put(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as error:
        read_manifest(tmp_path, **options)
    assert "\n" not in str(error.value)


def by_hand(raw: Path) -> None:
    """Write landmarks 5 and 40 with three images by Ann and Bob, and others with too few images or users."""
    of_landmark = {
        40: [("a00", "Ann"), ("a01", "Bob"), ("a02", "Bob"), ("a03", "Cy"), ("a04", "Di"), ("a05", "")],
        5: [("b00", "Ann"), ("b01", "Ann"), ("b02", "Bob"), ("b03", "Cy")],
        7: [("c00", "Ann"), ("c01", "Bob")],
        9: [("d00", "Cy"), ("d01", "Cy"), ("d02", "Cy")],
    }
    clean = "".join(f"{number},{' '.join(i for i, _ in images)}\n" for number, images in of_landmark.items())
    credit = "".join(
        f'{image},http://x,{author},CC BY,"A title,\nin two lines"\n'
        for images in reversed(of_landmark.values())
        for image, author in images
    )
    names = [image for images in of_landmark.values() for image, _ in images]
    clean, credit = "landmark_id,images\n" + clean, "id,url,author,license,title\n" + credit
    put(raw, *names, train_clean=clean, train_attribution=credit)


# By hand: 7 has two images and 9 one user, so that both are dropped, and then Di with one image. Cy, with an image of 40
# and one of 5, stays unless a user needs three.
def test_a_constructed_split_keeps_landmarks_and_users_with_enough(tmp_path: Path) -> None:
    by_hand(tmp_path)
    manifest = read_manifest(tmp_path, construct=True, filters=SMALL)
    assert {(image, user, name) for image, user, split, name in rows(manifest) if split == "train"} == {
        ("a00", "Ann", "40"), ("a01", "Bob", "40"), ("a02", "Bob", "40"), ("a03", "Cy", "40"),
        ("b00", "Ann", "5"), ("b01", "Ann", "5"), ("b02", "Bob", "5"), ("b03", "Cy", "5"),
    }  # fmt: skip
    assert manifest.labels["class"].classes == ("5", "40")


def test_test_images_are_by_authors_without_training_images(tmp_path: Path) -> None:
    by_hand(tmp_path)
    filters = Filters(3, 2, 3, 2, max_test_images_per_landmark=1)
    for seed in range(5):
        manifest = read_manifest(tmp_path, construct=True, filters=filters, seed=seed)
        test_images = {(image, name) for image, _, split, name in rows(manifest) if split == "test"}
        assert ("b03", "5") in test_images
        assert test_images - {("b03", "5")} <= {("a03", "40"), ("a04", "40")}  # one of two; a05 has no author
        assert len(test_images) == 2


# Landmark 0 has enough users until user 2 is dropped, whose other landmark 1 has only one user.
def test_filters_are_repeated_until_all_that_is_left_has_enough() -> None:
    landmarks, users = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 2, 2, 2])
    filters = Filters(2, 2, 2, 1)
    assert not filter_images(landmarks, users, filters, np.ones(5, bool)).any()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=150),
    st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 8), st.integers(1, 3)),
)
def test_all_four_conditions_hold_and_no_more_images_could_stay(
    images: list[tuple[int, int]], minima: tuple[int, int, int, int]
) -> None:
    landmarks, users = (np.array([image[i] for image in images], np.int64) for i in (0, 1))
    mask = filter_images(landmarks, users, Filters(*minima), np.ones(len(images), bool))

    def holds(subset: set[int]) -> bool:
        pairs = [images[i] for i in subset]
        for landmark in {landmark for landmark, _ in pairs}:
            users_of_landmark = [b for a, b in pairs if a == landmark]
            if len(users_of_landmark) < minima[0] or len(set(users_of_landmark)) < minima[1]:
                return False
        for user in {user for _, user in pairs}:
            landmarks_of_user = [a for a, b in pairs if b == user]
            if len(landmarks_of_user) < minima[2] or len(set(landmarks_of_user)) < minima[3]:
                return False
        return True

    chosen = set(np.flatnonzero(mask).tolist())
    assert holds(chosen)
    for landmark, user in {images[i] for i in range(len(images)) if i not in chosen}:  # no pair could come back alone
        assert not holds(chosen | {i for i, image in enumerate(images) if image == (landmark, user)})


def test_a_landmark_with_100_000_images_is_read_from_one_row(tmp_path: Path) -> None:
    ids = [f"{number:016x}" for number in range(100_000)]  # 1.7 MB
    put(tmp_path, train_clean=f"landmark_id,images\n3,{' '.join(ids)}\n4,{'f' * 16}\n")
    put(tmp_path, train_attribution="id,author\n" + "".join(f"{name},Ann\n" for name in ids))
    assert len(make_split(tmp_path, seed=0, filters=Filters(1, 1, 1, 1)).users) == len(ids)


@pytest.mark.slow
def test_a_constructed_split_satisfies_the_paper(synthetic_raw: Path) -> None:
    manifest = make_split(synthetic_raw, seed=0)
    is_train, labels = manifest.split == "train", manifest.labels["class"]
    train_classes = labels.nonzero(np.flatnonzero(is_train))[1]
    pairs = list(zip(train_classes.tolist(), manifest.users[is_train].tolist(), strict=True))
    for landmark in {landmark for landmark, _ in pairs}:
        users = [b for a, b in pairs if a == landmark]
        assert len(users) >= 30
        assert len(set(users)) >= 10
    for user in {user for _, user in pairs}:
        landmarks = [a for a, b in pairs if b == user]
        assert len(landmarks) >= 30
        assert len(set(landmarks)) >= 5
    assert 0 < labels.counts(np.flatnonzero(~is_train)).max() <= 10
    assert set(manifest.users[~is_train]) == {""}


@pytest.mark.slow
def test_the_seed_chooses_only_the_test_images(synthetic_raw: Path) -> None:
    first, repeated, other_seed = (read_manifest(synthetic_raw, construct=True, seed=seed) for seed in (0, 0, 1))
    assert rows(first) == rows(repeated)
    differ = rows(first) ^ rows(other_seed)
    assert {split for _, _, split, _ in differ} == {"test"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"split": "23k"}, {"construct": True}])
def test_every_synthetic_image_has_its_own_label(
    synthetic_raw: Path, class_ids: dict[bytes, int], options: dict[str, Any]
) -> None:
    manifest = read_manifest(synthetic_raw, **options)
    labels = manifest.labels["class"]
    assert isinstance(labels, SingleLabels)
    classes: dict[int, set[int]] = {}
    for example in range(len(manifest)):
        content = manifest.source.read(int(manifest.image[example]))
        classes.setdefault(int(labels.ids[example]), set()).add(class_ids[content])  # type: ignore[index]
    assert all(len(ids) == 1 for ids in classes.values())  # each class is one of the synthetic ones
    assert len({min(ids) for ids in classes.values()}) == len(labels.classes)
    if options.get("construct"):
        assert [int(name) for name in labels.classes] == [1000 + 37 * min(classes[c]) for c in sorted(classes)]


@pytest.mark.slow
def test_a_tenth_of_the_synthetic_images_is_missing(synthetic_raw: Path) -> None:
    train = read_manifest(synthetic_raw).notes["coverage"]["train"]
    assert 0.85 < train["found"] / train["listed"] < 0.95


def test_synthetic_files_may_have_few_users(tmp_path: Path) -> None:
    write_synthetic(SyntheticImages(users=20, size=32), tmp_path)
    manifest = read_manifest(tmp_path)
    assert len(set(manifest.users.tolist())) > 8
    assert "test" in manifest.split


def test_remote_files_have_their_published_names() -> None:
    names = [remote.name for remote in dataset("landmarks").remote_files]
    assert names[0] == "landmarks-user-160k.zip"
    assert [names[-500], names[-1]] == ["images_000.tar", "images_499.tar"]
