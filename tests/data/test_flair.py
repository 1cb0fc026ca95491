"""FLAIR's raw download: every image with its own labels, and whatever is odd in the notes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels
from manyeyes.data.datasets import flair
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic


def entry(image: str, user: str, partition: str = "train", **labels: list[str]) -> dict[str, Any]:
    given = {"labels": ["plant"], "fine_grained_labels": ["oak"]} | labels
    return {"user_id": user, "image_id": image, "partition": partition, **given}


def write(raw: Path, entries: list[dict[str, Any]], without: tuple[str, ...] = ()) -> Path:
    """Entries and their images; entry k's image is grey of 10 k, so that pixels say whose they are."""
    (raw / "small_images").mkdir(parents=True)
    (raw / "labels_and_metadata.json").write_text(json.dumps(entries))
    for k, one in enumerate(entries):
        path = raw / "small_images" / f"{one['image_id']}.jpg"
        if one["image_id"] not in without and not path.exists():
            Image.new("RGB", (8, 8), (10 * k,) * 3).save(path)
    return raw


def names(listing: Manifest, task: str) -> list[list[str]]:
    labels = listing.labels[task]
    assert isinstance(labels, MultiLabels)
    rows = np.split(labels.indices, labels.indptr[1:-1])
    return [[labels.classes[i] for i in row] for row in rows]


def grey(data: object) -> int:
    assert isinstance(data, bytes)
    return int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])


THREE = [
    entry("b", "ann", labels=["plant", "animal"], fine_grained_labels=["oak", "cat", "cat"]),
    entry("a", "bob", "val", labels=["structure"], fine_grained_labels=["bridge"]),
    entry("c", "ann", labels=[], fine_grained_labels=[]),
]


def test_classes_are_the_names_in_sorted_order_and_each_label_counts_once(tmp_path: Path) -> None:
    listing = flair.read_manifest(write(tmp_path / "raw", THREE))
    assert list(listing.labels) == ["coarse", "fine"]
    assert listing.labels["coarse"].classes == ("animal", "plant", "structure")
    assert names(listing, "coarse") == [["animal", "plant"], ["structure"], []]
    assert names(listing, "fine") == [["cat", "oak"], ["bridge"], []]


def test_every_entry_reads_its_own_image(tmp_path: Path) -> None:
    listing = flair.read_manifest(write(tmp_path / "raw", THREE))
    assert listing.columns["image_id"].tolist() == ["b", "a", "c"]
    assert [grey(listing.source.read(k)) for k in listing.image] == [0, 10, 20]
    assert [listing.source.name(k) for k in listing.image] == ["b.jpg", "a.jpg", "c.jpg"]


def test_the_published_split_is_kept_and_dev_is_val(tmp_path: Path) -> None:
    entries = [entry("a", "ann"), entry("b", "bob", "dev"), entry("c", "cid", "test"), entry("d", "dan", "val")]
    assert flair.read_manifest(write(tmp_path / "raw", entries)).split.tolist() == ["train", "val", "test", "val"]


def test_nothing_odd_leaves_only_source_and_licence_in_the_notes(tmp_path: Path) -> None:
    assert set(flair.read_manifest(write(tmp_path / "raw", THREE)).notes) == {"source", "licence"}


def test_an_entry_without_an_image_is_left_out_and_named_and_the_classes_stay(tmp_path: Path) -> None:
    listing = flair.read_manifest(write(tmp_path / "raw", THREE, without=("a",)))
    assert listing.columns["image_id"].tolist() == ["b", "c"]
    assert [grey(listing.source.read(k)) for k in listing.image] == [0, 20]
    assert listing.notes["images without a file, left out"] == {"count": 1, "first": ["a"]}
    assert listing.labels["coarse"].classes == ("animal", "plant", "structure")


def test_an_image_id_listed_again_is_left_out_and_named(tmp_path: Path) -> None:
    listing = flair.read_manifest(write(tmp_path / "raw", [*THREE, entry("a", "eve")]))
    assert listing.users.tolist() == ["ann", "bob", "ann"]
    assert listing.notes["image ids listed again, left out"] == {"count": 1, "first": ["a"]}


def test_a_user_in_two_partitions_is_kept_in_the_first_and_named(tmp_path: Path) -> None:
    listing = flair.read_manifest(write(tmp_path / "raw", [*THREE, entry("d", "ann", "test")]))
    assert listing.split.tolist() == ["train", "val", "train", "train"]
    assert listing.notes["users in two splits, kept in their first"] == {"count": 1, "first": ["ann"]}


def test_labels_unknown_to_the_taxonomy_are_kept_and_named(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "label_relationship.txt").write_text("oak -> plant\ncat -> animal\n")
    listing = flair.read_manifest(raw)
    assert listing.notes["labels unknown to label_relationship.txt, kept"] == {
        "count": 2,
        "first": ["structure", "bridge"],
    }
    assert names(listing, "coarse")[1] == ["structure"]


def test_a_fine_label_may_have_a_comma_and_two_coarse_labels(tmp_path: Path) -> None:
    entries = [entry("a", "ann", labels=["art", "music"], fine_grained_labels=["song, sung"])]
    raw = write(tmp_path / "raw", entries)
    (raw / "label_relationship.txt").write_text("song, sung -> art\n\nsong, sung -> music\n")
    assert set(flair.read_manifest(raw).notes) == {"source", "licence"}


def test_a_mark_before_the_first_label_is_no_part_of_it(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", [entry("a", "ann", labels=["plant"], fine_grained_labels=["oak"])])
    (raw / "label_relationship.txt").write_bytes(b"\xef\xbb\xbfoak -> plant\r\n")
    assert set(flair.read_manifest(raw).notes) == {"source", "licence"}


def test_the_notes_can_be_written_as_json_and_name_five_at_most(tmp_path: Path) -> None:
    entries = [entry(f"i{k}", "ann") for k in range(20)]
    listing = flair.read_manifest(write(tmp_path / "raw", entries, without=tuple(f"i{k}" for k in range(1, 20))))
    found = json.loads(json.dumps(listing.notes))["images without a file, left out"]
    assert found == {"count": 19, "first": ["i1", "i2", "i3", "i4", "i5"]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"user_id": "a", "image_id"', "not whole JSON"),
        ("[]", "not a list of entries"),
        ('{"images": []}', "no 'labels'"),
        ("[1, 2]", "not a list of entries"),
        ('[{"labels": [], "fine_grained_labels": [], "image_id": "a", "partition": "train"}]', "no 'user_id'"),
        (json.dumps([entry("a", "ann", "training")]), "entry 0 .* partition 'training'"),
        (json.dumps([entry("a", "ann"), {**entry("b", "ann"), "labels": "plant"}]), "entry 1 .* list of names"),
    ],
)
def test_broken_labels_are_named_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "labels_and_metadata.json").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        flair.read_manifest(raw)


def test_a_folder_without_labels_or_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labels_and_metadata\.json is not there"):
        flair.read_manifest(tmp_path)
    (tmp_path / "labels_and_metadata.json").write_text(json.dumps(THREE))
    with pytest.raises(ValueError, match=r"none of the 3 images .* extract"):
        flair.read_manifest(tmp_path)


def test_a_line_of_the_taxonomy_that_is_no_pair_is_named(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "label_relationship.txt").write_text("oak -> plant\nnonsense\n")
    with pytest.raises(ValueError, match=r"line 2 .* 'nonsense'"):
        flair.read_manifest(raw)


def test_an_image_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    Image.new("RGB", (8, 8)).save(raw / "secret.jpg")
    (raw / "labels_and_metadata.json").write_text(json.dumps([*THREE, entry("../secret", "eve")]))
    assert "../secret" not in flair.read_manifest(raw).columns["image_id"]


WORLD = SyntheticImages(users=12, size=32, images_per_user=3, coarse=5, fine=12)


def test_a_standin_lists_what_the_world_holds(tmp_path: Path) -> None:
    flair.write_synthetic(WORLD, tmp_path)
    listing, population = flair.read_manifest(tmp_path), make_synthetic(WORLD)
    assert set(listing.notes) == {"source", "licence"}
    assert listing.columns["image_id"].tolist() == np.asarray(population.columns["image_id"]).tolist()
    assert listing.split.tolist() == np.asarray(population.columns["split"]).tolist()
    for task in ("coarse", "fine"):
        labels = population.task(task).labels
        for example, found in enumerate(names(listing, task)):
            assert found == sorted(labels.classes[i] for i in labels.nonzero(np.array([example]))[1])
    data = listing.source.read(7)
    assert isinstance(data, bytes)
    read = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    assert np.abs(read - population.pixels(np.array([7]))[0]).mean() < 6  # a JPEG of it, not of another


def test_a_standin_in_archives_holds_the_same_images(tmp_path: Path) -> None:
    flair.write_synthetic(WORLD, tmp_path / "plain")
    flair.write_synthetic(WORLD, tmp_path / "packed", archives=2)
    assert not (tmp_path / "packed" / "small_images").exists()
    for path in sorted((tmp_path / "packed").glob("small_images-*.tar.gz")):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "packed", filter="data")
    plain, packed = (
        {path.name: path.read_bytes() for path in (tmp_path / kind / "small_images").iterdir()}
        for kind in ("plain", "packed")
    )
    assert len(plain) == 36
    assert plain == packed


def test_a_world_split_within_users_is_no_flair(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each in one split"):
        flair.write_synthetic(SyntheticImages(users=2, split="per_user"), tmp_path)
