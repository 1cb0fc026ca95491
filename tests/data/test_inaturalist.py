"""iNaturalist's splits: from both releases and anew, on hand-made files and on a stand-in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import SingleLabels
from manyeyes.data.datasets import inaturalist
from manyeyes.data.datasets.inaturalist import read_manifest, write_synthetic
from manyeyes.data.datasets.released_splits import make_manifest, read_released, sample_per_class
from manyeyes.data.download.fetch import RemoteFile
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

WORLD = SyntheticImages(users=250, size=32)


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("inaturalist")
    write_synthetic(WORLD, raw)
    return raw


@pytest.fixture(scope="module")
def named() -> dict[bytes, str]:
    """The class of each photograph of the world, by the bytes of its file."""
    population = make_synthetic(WORLD)
    everyone = np.arange(len(population))
    return {
        simplejpeg.encode_jpeg(pixels, quality=95): population.classes[label]
        for pixels, label in zip(population.pixels(everyone), population.labels.targets(everyone), strict=True)
    }


def put(raw: Path, **files: str) -> None:
    """Files by their names without ending: tables, or images of these contents where the name is one letter."""
    for name, content in files.items():
        path = raw / f"train_val_images/Aves/Bird/{name}.jpg" if len(name) == 1 else raw / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def rows(found: Manifest) -> set[tuple[str, str, str, str]]:
    """(image, user, split, class) of every example."""
    labels = found.labels["class"]
    assert isinstance(labels, SingleLabels)
    names = [labels.classes[i] for i in labels.ids]
    return set(zip(found.columns["image_id"].tolist(), found.users.tolist(), found.split.tolist(), names, strict=True))


def annotate(raw: Path, part: str, images: list[tuple[int, str, int]], places: list[dict[str, Any]]) -> None:
    told = {
        "images": [{"id": i, "file_name": f"train_val_images/Aves/Bird/{name}.jpg"} for i, name, _ in images],
        "annotations": [{"image_id": i, "category_id": c} for i, _, c in reversed(images)],
        "categories": [{"id": c, "name": f"Bird {c}"} for c in (7, 9)],
    }
    raw.mkdir(exist_ok=True)
    (raw / f"{part}2017.json").write_text(json.dumps(told))
    (raw / f"{part}2017_locations.json").write_text(json.dumps(places))


SPLIT = "user_id,image_id,class,label\n12,a,1,Wren\n12,b,0,Crow\n7,c,1,Wren\n"
TEST = "image_id,class,label\nd,0,Crow\n"


def test_a_released_split_is_read_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="", b="", c="", d="")
    found = read_manifest(tmp_path)
    assert rows(found) == {
        ("a", "12", "train", "Wren"),
        ("b", "12", "train", "Crow"),
        ("c", "7", "train", "Wren"),
        ("d", "", "test", "Crow"),
    }
    assert found.labels["class"].classes == ("Crow", "Wren")


def test_images_of_an_example_are_read_from_its_own_file(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="is a", b="is b", c="is c", d="is d")
    found = read_manifest(tmp_path)
    for example, name in enumerate(found.columns["image_id"]):
        assert found.source.read(int(found.image[example])) == f"is {name}".encode()


def test_images_are_found_in_folders_that_are_links(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k="user_id,image_id,class\nann,a,0\n", test="image_id,class\n", a="photo")
    (tmp_path / "train_val_images" / "Aves").rename(tmp_path / "disk")
    (tmp_path / "train_val_images" / "Aves").symlink_to(tmp_path / "disk")
    assert read_manifest(tmp_path).source.read(0) == b"photo"


def test_splits_may_lie_elsewhere_in_the_folders_of_their_archives(tmp_path: Path) -> None:
    put(tmp_path / "raw", a="", b="", c="", d="")
    put(tmp_path / "splits" / "inaturalist-geo", federated_train_geo_3k=SPLIT, test=TEST)
    assert len(read_manifest(tmp_path / "raw", split="geo_3k", splits=tmp_path / "splits")) == 4


def test_the_column_of_a_split_is_its_users_and_na_is_no_client(tmp_path: Path) -> None:
    table = "image_id,class,label,user_120k,geo_100\na,0,Crow,12,NA\nb,1,Wren,12,89c\nc,1,Wren,7,89c\n"
    put(tmp_path, iNaturalist_train=table, iNaturalist_test=TEST, a="", b="", c="", d="")
    found = read_manifest(tmp_path, split="geo_100")
    assert {(image, user) for image, user, *_ in rows(found)} == {("b", "89c"), ("c", "89c"), ("d", "")}
    assert found.notes["training examples of no client, left out"]["count"] == 1
    assert len(read_manifest(tmp_path)) == 4


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST, a="", b="")
    found = read_manifest(tmp_path)
    assert found.columns["image_id"].tolist() == ["a", "b"]
    assert found.notes["coverage"] == {
        "train": {"listed": 3, "found": 2},
        "test": {"listed": 1, "found": 0},
        "users": {"listed": 2, "found": 1},
    }
    assert found.notes["images without a file, left out"] == {"count": 2, "first": ["c", "d"]}


def test_an_image_listed_twice_stays_once_and_in_train(tmp_path: Path) -> None:
    put(tmp_path, federated_train_user_120k=SPLIT, test=TEST + "a,1,Wren\n", a="", b="", c="", d="")
    found = read_manifest(tmp_path)
    assert found.split[found.columns["image_id"] == "a"].tolist() == ["train"]
    assert found.notes["image ids listed again, left out"] == {"count": 1, "first": ["a"]}


@pytest.mark.parametrize(
    ("files", "split", "message"),
    [
        ({}, "user", r"no split 'user'; give one of user_120k, geo_30k, .*geo_100"),
        ({}, "geo_1k", r"has neither federated_train_geo_1k.csv nor iNaturalist_train.csv; download"),
        ({"federated_train_user_120k": SPLIT}, "user_120k", r"test.csv does not exist; check the path"),
        (
            {"federated_train_user_120k": "user,image_id\n1,a\n", "test": TEST},
            "user_120k",
            r"no column 'user_id', but u",
        ),
        (
            {"federated_train_user_120k": "", "test": TEST},
            "user_120k",
            r"has no column 'user_id', but ; give the right",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,2\n", "test": TEST},
            "user_120k",
            r"cannot be read \(CSV parse error",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,e,x,Owl\n", "test": TEST},
            "user_120k",
            r"the class 'x'; a class is a",
        ),
        (
            {"federated_train_user_120k": SPLIT + "1,e,0,Owl\n", "test": TEST},
            "user_120k",
            r"do not agree on which class",
        ),
        (
            {"federated_train_user_120k": SPLIT, "test": TEST},
            "user_120k",
            r"train_val_images does not exist; extract t",
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
def test_bad_splits_are_one_sentence(tmp_path: Path, files: dict[str, str], split: str, message: str) -> None:
    put(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as error:
        read_manifest(tmp_path, split=split)
    assert "\n" not in str(error.value)


def by_hand(raw: Path) -> None:
    """Two training images of class 7 and three of class 9, two users, one image without a place."""
    images = [(0, "a", 9), (1, "b", 7), (2, "c", 9), (3, "d", 7), (4, "e", 9)]
    places = [{"id": i, "lat": 47.0, "lon": 8.5, "user_id": 50 + i % 2, "date": None} for i in (4, 1, 2, 0)]
    annotate(raw, "train", images, [*places, {"id": 3, "lat": None, "lon": None, "user_id": None, "date": None}])
    annotate(raw, "val", [(8, "f", 7), (9, "g", 9)], [])
    put(raw, **dict.fromkeys("abcdefg", ""))


def test_a_constructed_split_joins_annotations_and_places_by_image(tmp_path: Path) -> None:
    by_hand(tmp_path)
    found = read_manifest(tmp_path, construct=True, per_class=3)
    assert rows(found) == {
        ("a", "50", "train", "Bird 9"),
        ("c", "50", "train", "Bird 9"),
        ("e", "50", "train", "Bird 9"),
        ("g", "", "test", "Bird 9"),  # f is of a class that was cut
    }
    assert found.columns["latitude"][:3].tolist() == [47.0] * 3


def test_an_image_without_a_user_or_place_is_no_clients(tmp_path: Path) -> None:
    by_hand(tmp_path)
    for split in ("user_120k", "geo_100"):
        found = read_manifest(tmp_path, construct=True, per_class=2, split=split)
        train = [name for name, _, part, _ in rows(found) if part == "train"]
        assert len(train) == 3
        assert "d" not in train
        assert found.notes["training examples of no client, left out"]["count"] == 1


def test_images_at_one_place_are_one_client(tmp_path: Path) -> None:
    by_hand(tmp_path)
    found = read_manifest(tmp_path, construct=True, per_class=2, split="geo_300")
    assert len({user for _, user, part, _ in rows(found) if part == "train"}) == 1


def test_classes_below_a_hundred_are_cut_by_default(tmp_path: Path) -> None:
    by_hand(tmp_path)
    with pytest.raises(ValueError, match=r"No class in .* has 100 training images; the published files have 1,203"):
        read_manifest(tmp_path, construct=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train2017.json", None, r"has no train2017.json; extract train_val2017.zip and inat2017_locations.zip there"),
        ("val2017_locations.json", None, r"has no val2017_locations.json; extract"),
        ("train2017.json", '{"images": [', r"train2017.json is no JSON \(.*\); fetch it anew"),
        ("train2017.json", '{"images": []}', r"not as iNaturalist-2017 publishes them \(KeyError\('annotations'\)\)"),
        (
            "train2017_locations.json",
            '{"a": 1}',
            r"train2017_locations.json in .* are not as iNaturalist-2017 publishes",
        ),
    ],
)
def test_bad_annotations_are_one_sentence(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    by_hand(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path, construct=True, per_class=2)


@given(st.lists(st.integers(0, 6), max_size=300), st.integers(1, 40), st.integers(0, 5))
def test_balancing_keeps_exactly_so_many_of_every_class_that_has_them(
    classes: list[int], wanted: int, seed: int
) -> None:
    ids = np.array(classes, np.int64)
    chosen = sample_per_class(ids, wanted, np.random.default_rng(seed), least=wanted)
    assert len(set(chosen.tolist())) == len(chosen)
    counts = {c: classes.count(c) for c in set(classes)}
    kept = [classes[i] for i in chosen]
    assert {c: kept.count(c) for c in kept} == {c: wanted for c, count in counts.items() if count >= wanted}


@given(st.lists(st.integers(0, 6), max_size=200), st.integers(1, 40))
def test_a_draw_without_a_least_takes_all_of_a_small_class(classes: list[int], most: int) -> None:
    kept = [classes[i] for i in sample_per_class(np.array(classes, np.int64), most, np.random.default_rng(0))]
    assert all(kept.count(c) == min(most, classes.count(c)) for c in set(classes))


def test_every_image_of_a_class_is_as_likely_to_be_drawn() -> None:
    ids = np.zeros(10, np.int64)
    drawn = np.concatenate([sample_per_class(ids, 3, np.random.default_rng(seed)) for seed in range(2000)])
    assert abs(np.bincount(drawn) - 600).max() < 100  # five standard deviations of a binomial


def test_the_seed_chooses_the_images_and_nothing_else_does(standin: Path) -> None:
    first, same, other = (
        set(read_manifest(standin, construct=True, seed=seed).columns["image_id"].tolist()) for seed in (0, 0, 1)
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize("split", ["user_120k", "geo_100"])
def test_a_constructed_standin_has_a_hundred_of_each_class(standin: Path, split: str) -> None:
    entries = inaturalist.constructed(standin, split, seed=0)
    counts = entries.labels.take(np.flatnonzero(entries.splits == "train")).counts()
    assert counts.sum() + entries.clientless == 100 * len(counts)
    assert counts.max() <= 100
    assert len(counts) < WORLD.coarse  # some were cut


def test_no_constructed_cell_has_more_than_its_most(standin: Path) -> None:
    found = read_manifest(standin, construct=True, split="geo_100")
    assert np.unique(found.users[found.split == "train"], return_counts=True)[1].max() <= 100
    assert found.notes["training examples of no client, left out"]["count"] > 0


@pytest.mark.parametrize(
    "options", [{}, {"split": "geo_300"}, {"construct": True}, {"construct": True, "split": "geo_100"}]
)
def test_every_image_of_a_standin_pairs_with_its_own_label(
    standin: Path, named: dict[bytes, str], options: dict[str, Any]
) -> None:
    found = read_manifest(standin, **options)
    labels = found.labels["class"]
    assert isinstance(labels, SingleLabels)
    for example in range(len(found)):
        content = found.source.read(int(found.image[example]))
        assert named[content] == labels.classes[labels.ids[example]]  # type: ignore[index]
    assert found.notes["coverage"]["train"]["found"] < found.notes["coverage"]["train"]["listed"]


@pytest.mark.parametrize("split", inaturalist.SPLITS)
def test_both_releases_of_a_standin_say_the_same(standin: Path, split: str) -> None:
    assert rows(read_manifest(standin, split=split)) == rows(
        read_manifest(standin, split=split, splits=standin / "columns")
    )


def test_a_listing_can_be_kept_as_json(standin: Path) -> None:
    assert json.loads(json.dumps(read_manifest(standin).notes))["split"] == "user_120k"


def test_a_small_world_can_be_a_standin(tmp_path: Path) -> None:
    write_synthetic(replace(WORLD, users=12), tmp_path)
    assert len(read_manifest(tmp_path)) > 0


def test_entries_keep_their_columns_when_some_are_taken(tmp_path: Path) -> None:
    put(tmp_path, train=SPLIT, test=TEST)
    entries = replace(read_released(tmp_path / "train.csv", tmp_path / "test.csv"), columns={"place": np.arange(4)})
    found = make_manifest("x", tmp_path, entries, ["", "here", "", "there"], {"split": "all"})
    assert found.columns["place"].tolist() == [1, 3]
    assert found.source.name(1) == "there"


def test_remote_files_are_named_as_their_publishers_name_them() -> None:
    remotes: list[RemoteFile] = [*inaturalist.RELEASED, *inaturalist.ANNOTATIONS, inaturalist.PHOTOGRAPHS]
    assert [remote.name for remote in remotes] == [
        "inaturalist-user-120k.zip",
        "inaturalist-geo.zip",
        "train_val2017.zip",
        "inat2017_locations.zip",
        "train_val_images.tar.gz",
    ]
