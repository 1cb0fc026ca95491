"""Manifests: selecting examples, dropping those without an image, and the notes about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manyeyes.core.population import SingleLabels
from manyeyes.data.manifest import Files, Manifest, check_choice, files_by_name


def manifest_of(image_ids: list[str]) -> Manifest:
    """Return a manifest of one user, whose class and image index are the position of each image."""
    count = len(image_ids)
    return Manifest(
        "test",
        Files(Path("raw"), [f"{image_id}.jpg" for image_id in image_ids]),
        image=np.arange(count),
        users=np.full(count, "ann"),
        split=np.full(count, "train"),
        labels={"class": SingleLabels(np.arange(count), tuple(map(str, range(count))))},
        columns={"image_id": np.array(image_ids)},
        notes={"source": "here"},
    )


def test_taken_examples_keep_their_images_labels_and_columns() -> None:
    manifest = manifest_of(["a", "b", "c"]).take(np.array([2, 0]))
    assert [manifest.source.name(int(index)) for index in manifest.image] == ["c.jpg", "a.jpg"]
    assert manifest.labels["class"].targets(np.arange(2)).tolist() == [2, 0]
    assert manifest.columns["image_id"].tolist() == ["c", "a"]
    assert manifest.notes == {"source": "here"}


def test_the_first_of_each_image_id_is_kept_and_duplicates_are_noted() -> None:
    manifest = manifest_of(["b", "a", "b", "b"]).drop_duplicates()
    assert manifest.image.tolist() == [0, 1]
    assert manifest.notes["duplicate image ids, left out"] == {"count": 2, "first": ["b", "b"]}


def test_missing_images_are_dropped_and_noted() -> None:
    manifest = manifest_of(["a", "b"]).drop_missing(np.array([False, True]))
    assert manifest.columns["image_id"].tolist() == ["b"]
    assert manifest.notes["images without a file, left out"] == {"count": 1, "first": ["a"]}


def test_a_note_names_at_most_five_and_a_problem_of_none_is_not_noted() -> None:
    notes = manifest_of(["a"]).add_notes({"many": list("abcdefg"), "none": []}).notes
    assert notes == {"source": "here", "many": {"count": 7, "first": list("abcde")}}


def test_files_are_found_by_name_in_the_first_folder_that_has_them(tmp_path: Path) -> None:
    for path in ("b/x/1.jpg", "b/2.jpg", "c/1.jpg", "3.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert files_by_name(tmp_path) == {"1.jpg": "b/x/1.jpg", "2.jpg": "b/2.jpg", "3.jpg": "3.jpg"}


def test_an_unknown_choice_raises_with_the_known_ones() -> None:
    check_choice("size", 10, (10, 100))
    with pytest.raises(ValueError, match=r"^Unknown size 20: choose 10, 100$"):
        check_choice("size", 20, (10, 100))
