"""FLAIR's raw download: every image with its own labels; the notes list every problem."""

from __future__ import annotations

import io
import json
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
    default_labels = {"labels": ["plant"], "fine_grained_labels": ["oak"]}
    return {"user_id": user, "image_id": image, "partition": partition, **default_labels, **labels}


def write(raw: Path, entries: list[dict[str, Any]], without: tuple[str, ...] = ()) -> Path:
    """Write entries and their images; the image of entry k is gray with value 10 k, which identifies it."""
    (raw / "small_images").mkdir(parents=True)
    (raw / "labels_and_metadata.json").write_text(json.dumps(entries))
    for k, row in enumerate(entries):
        path = raw / "small_images" / f"{row['image_id']}.jpg"
        if row["image_id"] not in without and not path.exists():
            Image.new("RGB", (8, 8), (10 * k,) * 3).save(path)
    return raw


def names(manifest: Manifest, task: str) -> list[list[str]]:
    labels = manifest.labels[task]
    assert isinstance(labels, MultiLabels)
    rows = np.split(labels.indices, labels.indptr[1:-1])
    return [[labels.classes[i] for i in row] for row in rows]


def gray(data: object) -> int:
    assert isinstance(data, bytes)
    return int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])


THREE = [
    entry("b", "ann", labels=["plant", "animal"], fine_grained_labels=["oak", "cat", "cat"]),
    entry("a", "bob", "val", labels=["structure"], fine_grained_labels=["bridge"]),
    entry("c", "ann", labels=[], fine_grained_labels=[]),
]


def test_classes_are_the_names_in_sorted_order_and_each_label_counts_once(tmp_path: Path) -> None:
    manifest = flair.read_manifest(write(tmp_path / "raw", THREE))
    assert list(manifest.labels) == ["coarse", "fine"]
    assert manifest.labels["coarse"].classes == ("animal", "plant", "structure")
    assert names(manifest, "coarse") == [["animal", "plant"], ["structure"], []]
    assert names(manifest, "fine") == [["cat", "oak"], ["bridge"], []]


def test_every_entry_reads_its_own_image(tmp_path: Path) -> None:
    manifest = flair.read_manifest(write(tmp_path / "raw", THREE))
    assert manifest.columns["image_id"].tolist() == ["b", "a", "c"]
    assert [gray(manifest.source.read(k)) for k in manifest.image] == [0, 10, 20]
    assert [manifest.source.name(k) for k in manifest.image] == ["b.jpg", "a.jpg", "c.jpg"]


def test_the_published_split_is_kept_and_dev_is_val(tmp_path: Path) -> None:
    entries = [entry("a", "ann"), entry("b", "bob", "dev"), entry("c", "cid", "test"), entry("d", "dan", "val")]
    assert flair.read_manifest(write(tmp_path / "raw", entries)).split.tolist() == ["train", "val", "test", "val"]


def test_a_dataset_without_problems_has_only_source_and_license_in_the_notes(tmp_path: Path) -> None:
    assert set(flair.read_manifest(write(tmp_path / "raw", THREE)).notes) == {"source", "license"}


def test_an_entry_without_an_image_is_left_out_and_named_and_the_classes_stay(tmp_path: Path) -> None:
    manifest = flair.read_manifest(write(tmp_path / "raw", THREE, without=("a",)))
    assert manifest.columns["image_id"].tolist() == ["b", "c"]
    assert [gray(manifest.source.read(k)) for k in manifest.image] == [0, 20]
    assert manifest.notes["images without a file, left out"] == {"count": 1, "first": ["a"]}
    assert manifest.labels["coarse"].classes == ("animal", "plant", "structure")


def test_a_duplicate_image_id_is_left_out_and_named(tmp_path: Path) -> None:
    manifest = flair.read_manifest(write(tmp_path / "raw", [*THREE, entry("a", "eve")]))
    assert manifest.users.tolist() == ["ann", "bob", "ann"]
    assert manifest.notes["duplicate image ids, left out"] == {"count": 1, "first": ["a"]}


def test_a_user_in_two_splits_is_assigned_to_the_first_and_named(tmp_path: Path) -> None:
    manifest = flair.read_manifest(write(tmp_path / "raw", [*THREE, entry("d", "ann", "test")]))
    assert manifest.split.tolist() == ["train", "val", "train", "train"]
    assert manifest.notes["users in two splits, assigned to their first"] == {"count": 1, "first": ["ann"]}


def test_labels_missing_from_the_taxonomy_are_kept_and_named(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "label_relationship.txt").write_text("oak -> plant\ncat -> animal\n")
    manifest = flair.read_manifest(raw)
    assert manifest.notes["labels missing from label_relationship.txt"] == {
        "count": 2,
        "first": ["structure", "bridge"],
    }
    assert names(manifest, "coarse")[1] == ["structure"]


def test_a_fine_label_may_have_a_comma_and_two_coarse_labels(tmp_path: Path) -> None:
    entries = [entry("a", "ann", labels=["art", "music"], fine_grained_labels=["song, sung"])]
    raw = write(tmp_path / "raw", entries)
    (raw / "label_relationship.txt").write_text("song, sung -> art\n\nsong, sung -> music\n")
    assert set(flair.read_manifest(raw).notes) == {"source", "license"}


def test_a_byte_order_mark_is_not_part_of_the_first_label(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", [entry("a", "ann", labels=["plant"], fine_grained_labels=["oak"])])
    (raw / "label_relationship.txt").write_bytes(b"\xef\xbb\xbfoak -> plant\r\n")
    assert set(flair.read_manifest(raw).notes) == {"source", "license"}


def test_the_notes_can_be_written_as_json_and_name_at_most_five(tmp_path: Path) -> None:
    entries = [entry(f"i{k}", "ann") for k in range(20)]
    manifest = flair.read_manifest(write(tmp_path / "raw", entries, without=tuple(f"i{k}" for k in range(1, 20))))
    note = json.loads(json.dumps(manifest.notes))["images without a file, left out"]
    assert note == {"count": 19, "first": ["i1", "i2", "i3", "i4", "i5"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"user_id": "a", "image_id"', "not complete JSON"),
        ("[]", "not a list of entries"),
        ('{"images": []}', "no 'labels'"),
        ("[1, 2]", "not a list of entries"),
        ('[{"labels": [], "fine_grained_labels": [], "image_id": "a", "partition": "train"}]', "no 'user_id'"),
        (json.dumps([entry("a", "ann", "training")]), "entry 0 .* partition 'training'"),
        (json.dumps([entry("a", "ann"), {**entry("b", "ann"), "labels": "plant"}]), "entry 1 .* list of names"),
    ],
)
def test_invalid_labels_raise_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "labels_and_metadata.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        flair.read_manifest(raw)


def test_a_folder_without_labels_or_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labels_and_metadata\.json does not exist"):
        flair.read_manifest(tmp_path)
    (tmp_path / "labels_and_metadata.json").write_text(json.dumps(THREE))
    with pytest.raises(ValueError, match=r"none of the 3 images .* extract"):
        flair.read_manifest(tmp_path)


def test_an_invalid_line_of_the_taxonomy_is_named(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    (raw / "label_relationship.txt").write_text("oak -> plant\nnonsense\n")
    with pytest.raises(ValueError, match=r"Line 2 .* 'nonsense'"):
        flair.read_manifest(raw)


def test_an_image_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", THREE)
    Image.new("RGB", (8, 8)).save(raw / "secret.jpg")
    (raw / "labels_and_metadata.json").write_text(json.dumps([*THREE, entry("../secret", "eve")]))
    assert "../secret" not in flair.read_manifest(raw).columns["image_id"]


SYNTHETIC = SyntheticImages(users=12, size=32, images_per_user=3, coarse=5, fine=12)


def test_synthetic_files_are_read_as_the_population_they_were_written_from(tmp_path: Path) -> None:
    flair.write_synthetic(SYNTHETIC, tmp_path)
    manifest, population = flair.read_manifest(tmp_path), make_synthetic(SYNTHETIC)
    assert set(manifest.notes) == {"source", "license"}
    assert manifest.columns["image_id"].tolist() == np.asarray(population.columns["image_id"]).tolist()
    assert manifest.split.tolist() == np.asarray(population.columns["split"]).tolist()
    for task in ("coarse", "fine"):
        labels = population.task(task).labels
        for example, label_names in enumerate(names(manifest, task)):
            assert label_names == sorted(labels.classes[i] for i in labels.nonzero(np.array([example]))[1])
    data = manifest.source.read(7)
    assert isinstance(data, bytes)
    read = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    assert np.abs(read - population.pixels(np.array([7]))[0]).mean() < 6  # a JPEG of it, not of another


def test_synthetic_images_that_are_split_per_user_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set split='users', as each user of FLAIR is in one split"):
        flair.write_synthetic(SyntheticImages(users=2, split="per_user"), tmp_path)
