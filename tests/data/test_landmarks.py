"""Landmarks' splits: as released, and anew by the paper's filters, on hand-made files and on a stand-in."""

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
    PHOTOGRAPHS,
    RELEASED,
    Filters,
    constructed,
    enough,
    read_manifest,
    write_synthetic,
)
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

WORLD = SyntheticImages(users=400, size=32, alpha=30)
SMALL = Filters(landmark_images=3, landmark_users=2, user_images=2, user_landmarks=2, test_images=1)


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("landmarks")
    write_synthetic(WORLD, raw)
    return raw


@pytest.fixture(scope="module")
def numbered() -> dict[bytes, int]:
    """The class of each photograph of the world, by the bytes of its file."""
    population = make_synthetic(WORLD)
    everyone = np.arange(len(population))
    return {
        simplejpeg.encode_jpeg(pixels, quality=95): int(label)
        for pixels, label in zip(population.pixels(everyone), population.labels.targets(everyone), strict=True)
    }


def put(raw: Path, *names: str, layout: str = "train/{0}/{1}/{2}/{id}.jpg", **files: str) -> None:
    """Images, which hold their own names, and tables."""
    paths = {layout.format(*name[:3], id=name): name for name in names}
    for path, content in (paths | {f"{name}.csv": text for name, text in files.items()}).items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_text(content)


def rows(found: Manifest) -> set[tuple[str, str, str, str]]:
    """(image, user, split, class) of every example."""
    labels = found.labels["class"]
    assert isinstance(labels, SingleLabels)
    names = [labels.classes[i] for i in labels.ids]
    return set(zip(found.columns["image_id"].tolist(), found.users.tolist(), found.split.tolist(), names, strict=True))


SPLIT = 'user_id,image_id,class\n"Ann, of Bern",0a1f,10\nNA,0b1f,2\nNA,0a2f,10\n'
TEST = "image_id,class\n0c3f,2\n"
IMAGES = ("0a1f", "0b1f", "0a2f", "0c3f")


@pytest.mark.parametrize("layout", ["train/{0}/{1}/{2}/{id}.jpg", "{0}/{1}/{2}/{id}.jpg", "images/{id}.jpg"])
def test_a_released_split_is_read_as_it_is_from_any_layout(tmp_path: Path, layout: str) -> None:
    put(tmp_path, *IMAGES, layout=layout, federated_train=SPLIT, test=TEST)
    found = read_manifest(tmp_path)
    assert rows(found) == {
        ("0a1f", "Ann, of Bern", "train", "10"),
        ("0b1f", "NA", "train", "2"),  # here NA is somebody's name
        ("0a2f", "NA", "train", "10"),
        ("0c3f", "", "test", "2"),
    }
    assert found.labels["class"].classes == ("2", "10")
    for example, name in enumerate(found.columns["image_id"]):
        assert found.source.read(int(found.image[example])) == name.encode()


def test_the_small_split_has_names_of_its_own(tmp_path: Path) -> None:
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
        ({"split": "8k"}, {}, r"no split '8k'; give one of 160k, 23k"),
        ({}, {}, r"has no federated_train.csv; download it there"),
        ({"split": "23k", "construct": True}, {}, r"How gld23k was chosen is not published.*; give its released CSVs"),
        ({}, {"federated_train": SPLIT, "test": TEST}, r"holds none of the 3 training images of landmarks 160k; extra"),
        ({}, {"federated_train": SPLIT + "x,../../a,1\n", "test": TEST}, r"Image id '../../a' is none of GLD-v2's"),
        ({"construct": True}, {}, r"has no train_clean.csv; download it there"),
        ({"construct": True}, {"train_clean": "landmark_id,images\n1,ab\n"}, r"has no train_attribution.csv"),
        (
            {"construct": True},
            {"train_clean": "landmark_id,images\n1,0a1f\n", "train_attribution": "id,author\n0a1f,Ann\n"},
            r"No landmark and user in .* pass the filters; the published files have 2,028 and 1,262",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, options: dict[str, Any], files: dict[str, str], message: str
) -> None:
    put(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as error:
        read_manifest(tmp_path, **options)
    assert "\n" not in str(error.value)


def by_hand(raw: Path) -> None:
    """Landmarks 5 and 40 have three images by Ann and Bob; 7 has enough of neither; others are by Cy, Di and nobody."""
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
    everything = [image for images in of_landmark.values() for image, _ in images]
    clean, credit = "landmark_id,images\n" + clean, "id,url,author,license,title\n" + credit
    put(raw, *everything, train_clean=clean, train_attribution=credit)


# By hand: 7 goes with its two images, 9 with its one user, and of the rest Di with one image. Cy, with an image of 40
# and one of 5, stays unless a user needs three.
def test_a_constructed_split_keeps_landmarks_and_users_with_enough(tmp_path: Path) -> None:
    by_hand(tmp_path)
    found = read_manifest(tmp_path, construct=True, filters=SMALL)
    assert {(image, user, name) for image, user, split, name in rows(found) if split == "train"} == {
        ("a00", "Ann", "40"), ("a01", "Bob", "40"), ("a02", "Bob", "40"), ("a03", "Cy", "40"),
        ("b00", "Ann", "5"), ("b01", "Ann", "5"), ("b02", "Bob", "5"), ("b03", "Cy", "5"),
    }  # fmt: skip
    assert found.labels["class"].classes == ("5", "40")


def test_test_images_are_by_authors_who_train_nothing(tmp_path: Path) -> None:
    by_hand(tmp_path)
    filters = Filters(landmark_images=3, landmark_users=2, user_images=3, user_landmarks=2, test_images=1)
    for seed in range(5):
        found = read_manifest(tmp_path, construct=True, filters=filters, seed=seed)
        tested = {(image, name) for image, _, split, name in rows(found) if split == "test"}
        assert ("b03", "5") in tested
        assert tested - {("b03", "5")} <= {("a03", "40"), ("a04", "40")}  # one of two; a05 is by nobody known
        assert len(tested) == 2


# A user of each landmark who has enough until another landmark goes: 0 needs user 2, whose landmark 1 has one user.
def test_cutting_goes_on_until_everybody_left_has_enough() -> None:
    landmarks, users = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 2, 2, 2])
    filters = Filters(landmark_images=2, landmark_users=2, user_images=2, user_landmarks=1)
    assert not enough(landmarks, users, filters, np.ones(5, bool)).any()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=150),
    st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 8), st.integers(1, 3)),
)
def test_all_four_conditions_hold_at_the_end_and_nothing_more_could_stay(
    photos: list[tuple[int, int]], least: tuple[int, int, int, int]
) -> None:
    landmarks, users = (np.array([photo[i] for photo in photos], np.int64) for i in (0, 1))
    keep = enough(landmarks, users, Filters(*least), np.ones(len(photos), bool))

    def holds(kept: set[int]) -> bool:
        some = [photos[i] for i in kept]
        for landmark in {landmark for landmark, _ in some}:
            of_it = [user for other, user in some if other == landmark]
            if len(of_it) < least[0] or len(set(of_it)) < least[1]:
                return False
        for user in {user for _, user in some}:
            of_them = [landmark for landmark, other in some if other == user]
            if len(of_them) < least[2] or len(set(of_them)) < least[3]:
                return False
        return True

    kept = set(np.flatnonzero(keep).tolist())
    assert holds(kept)
    for landmark, user in {photos[i] for i in range(len(photos)) if i not in kept}:  # no pair could come back alone
        assert not holds(kept | {i for i, photo in enumerate(photos) if photo == (landmark, user)})


def test_a_landmark_of_very_many_images_is_one_row(tmp_path: Path) -> None:
    ids = [f"{number:016x}" for number in range(100_000)]  # 1.7 MB
    put(tmp_path, train_clean=f"landmark_id,images\n3,{' '.join(ids)}\n4,{'f' * 16}\n")
    put(tmp_path, train_attribution="id,author\n" + "".join(f"{name},Ann\n" for name in ids))
    assert len(constructed(tmp_path, seed=0, filters=Filters(1, 1, 1, 1)).users) == len(ids)


def test_a_constructed_standin_satisfies_the_paper(standin: Path) -> None:
    entries = constructed(standin, seed=0)
    train = entries.splits == "train"
    pairs = list(zip(entries.labels.ids[train].tolist(), entries.users[train].tolist(), strict=True))
    for landmark in {landmark for landmark, _ in pairs}:
        users = [user for other, user in pairs if other == landmark]
        assert len(users) >= 30
        assert len(set(users)) >= 10
    for user in {user for _, user in pairs}:
        landmarks = [landmark for landmark, other in pairs if other == user]
        assert len(landmarks) >= 30
        assert len(set(landmarks)) >= 5
    tested = entries.labels.take(np.flatnonzero(~train)).counts()
    assert 0 < tested.max() <= 10
    assert set(entries.users[~train]) == {""}


def test_the_seed_chooses_the_test_images_and_nothing_else(standin: Path) -> None:
    first, same, other = (read_manifest(standin, construct=True, seed=seed) for seed in (0, 0, 1))
    assert rows(first) == rows(same)
    differ = rows(first) ^ rows(other)
    assert {split for _, _, split, _ in differ} == {"test"}


@pytest.mark.parametrize("options", [{}, {"split": "23k"}, {"construct": True}])
def test_every_image_of_a_standin_pairs_with_its_own_label(
    standin: Path, numbered: dict[bytes, int], options: dict[str, Any]
) -> None:
    found = read_manifest(standin, **options)
    labels = found.labels["class"]
    assert isinstance(labels, SingleLabels)
    shown: dict[int, set[int]] = {}
    for example in range(len(found)):
        content = found.source.read(int(found.image[example]))
        shown.setdefault(int(labels.ids[example]), set()).add(numbered[content])  # type: ignore[index]
    assert all(len(worlds) == 1 for worlds in shown.values())  # each class is one of the world's
    assert len({min(worlds) for worlds in shown.values()}) == len(labels.classes)
    if options.get("construct"):
        assert [int(name) for name in labels.classes] == [1000 + 37 * min(shown[c]) for c in sorted(shown)]


def test_a_tenth_of_a_standin_is_missing(standin: Path) -> None:
    train = read_manifest(standin).notes["coverage"]["train"]
    assert 0.85 < train["found"] / train["listed"] < 0.95


def test_a_small_world_can_be_a_standin(tmp_path: Path) -> None:
    write_synthetic(SyntheticImages(users=20, size=32), tmp_path)
    found = read_manifest(tmp_path)
    assert len(set(found.users.tolist())) > 8
    assert "test" in found.split


def test_remote_files_are_named_as_their_publishers_name_them() -> None:
    assert RELEASED[0].name == "landmarks-user-160k.zip"
    assert [PHOTOGRAPHS[0].name, PHOTOGRAPHS[-1].name] == ["images_000.tar", "images_499.tar"]
