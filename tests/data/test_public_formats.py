"""LEAF, MedMNIST, Tiny-ImageNet and sets of domains: hand-written files in each format are read as they are meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels
from manyeyes.data.datasets import domains, leaf, medmnist, tiny_imagenet
from manyeyes.data.manifest import Manifest


def class_names(manifest: Manifest) -> list[str]:
    labels = manifest.labels["label"]
    return [labels.classes[i] for i in labels.nonzero()[1]]


def write_leaf(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"users": [*data], "num_samples": [len(d["y"]) for d in data.values()], "user_data": data})
    )


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path, "PNG")


def test_femnist_of_leaf_has_its_writers_pixels_and_characters(tmp_path: Path) -> None:
    ink = [1.0] * 392 + [0.2] * 392
    write_leaf(tmp_path / "train" / "a.json", {"f01": {"x": [ink, ink], "y": [3, 10]}})
    write_leaf(tmp_path / "test" / "a.json", {"f01": {"x": [ink], "y": [61]}})
    manifest = leaf.read_manifest(tmp_path)
    assert manifest.users.tolist() == ["f01"] * 3
    assert manifest.split.tolist() == ["train", "train", "test"]
    assert class_names(manifest) == ["3", "A", "z"]
    pixels = manifest.source.read(0)
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (28, 28, 3)
    assert (np.unique(pixels[:14]).tolist(), np.unique(pixels[14:]).tolist()) == ([255], [51])


def test_celeba_of_leaf_has_its_celebrities_and_files(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data" / "a.json", {"7": {"x": ["1.jpg", "2.jpg"], "y": [0, 1]}})
    save(tmp_path / "img_align_celeba" / "1.jpg")
    manifest = leaf.read_manifest(tmp_path, name="celeba")
    assert class_names(manifest) == ["not smiling", "smiling"]
    assert sorted(manifest.split.tolist()) == ["test", "train"]
    assert manifest.source.read(0) == (tmp_path / "img_align_celeba" / "1.jpg").read_bytes()


@pytest.mark.parametrize("shape", [(30, 28, 28), (30, 28, 28, 3)])
def test_medmnist_has_its_splits_and_its_training_images_users(shape: tuple[int, ...], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    arrays: dict[str, Any] = {
        f"{split}_images": images[: 30 if split == "train" else 6] for split in ("train", "val", "test")
    }
    arrays |= {name.replace("images", "labels"): np.arange(len(array))[:, None] % 3 for name, array in arrays.items()}
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    manifest = medmnist.read_manifest(tmp_path / "pathmnist.npz", partition="iid", users=5)
    assert manifest.dataset == "pathmnist"
    assert dict(zip(*np.unique(manifest.split, return_counts=True), strict=True)) == {"train": 30, "val": 6, "test": 6}
    assert np.unique(manifest.users, return_counts=True)[1].tolist() == [12, 6, 6, 6, 6, 6]
    assert class_names(manifest)[:4] == ["0", "1", "2", "0"]
    pixels = manifest.source.read(3)
    assert isinstance(pixels, np.ndarray)
    assert np.array_equal(pixels[..., 0], images[3] if len(shape) == 3 else images[3, ..., 0])


def test_tiny_imagenet_has_classes_of_both_tables(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        for number in range(2):
            save(root / "train" / name / "images" / f"{name}_{number}.JPEG")
    (root / "val").mkdir()
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t62\t62\nval_1.JPEG\tn01\t0\t0\t62\t62\n")
    manifest = tiny_imagenet.read_manifest(tmp_path, partition="iid", users=2)
    assert class_names(manifest) == ["n01", "n01", "n02", "n02", "n02", "n01"]
    assert manifest.split.tolist() == ["train"] * 4 + ["test"] * 2
    assert manifest.users[4:].tolist() == ["", ""]
    assert manifest.source.name(4) == "val/images/val_0.JPEG"


def test_a_domain_is_a_user_or_is_divided_among_several(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for number in range(4):
            save(tmp_path / domain / "dog" / f"{number}.png")
    manifest = domains.read_manifest(tmp_path)
    assert np.unique(manifest.users).tolist() == ["art", "photo"]
    divided = domains.read_manifest(tmp_path, partition="iid", users=2)
    assert np.unique(divided.users).tolist() == ["art-000", "art-001", "photo-000", "photo-001"]
    assert [user.split("-")[0] for user in divided.users] == divided.columns["domain"].tolist()


def test_several_labels_cannot_be_partitioned(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([[1, 1], [0, 1], [1, 0], [0, 0]])
    names = ("train", "val", "test")
    arrays: dict[str, Any] = {f"{name}_images": images for name in names} | {f"{name}_labels": labels for name in names}
    np.savez(tmp_path / "chest.npz", **arrays)
    with pytest.raises(ValueError, match="partition=classes needs one class per example: choose iid"):
        medmnist.read_manifest(tmp_path, partition="classes")
    manifest = medmnist.read_manifest(tmp_path, partition="iid", users=2)
    assert isinstance(manifest.labels["label"], MultiLabels)


@pytest.mark.parametrize(
    ("read", "files", "message"),
    [
        (leaf.read_manifest, {}, "has no JSON files of LEAF"),
        (leaf.read_manifest, {"all_data/a.json": "{}"}, r"a\.json is not a JSON file of LEAF"),
        (medmnist.read_manifest, {}, "has 0 npz files: give the file of one dataset"),
        (medmnist.read_manifest, {"a.npz": "text"}, r"a\.npz cannot be read .*: download it again"),
        (tiny_imagenet.read_manifest, {}, "does not exist: extract tiny-imagenet-200.zip"),
        (domains.read_manifest, {}, "has no images: put them in"),
    ],
)
def test_a_folder_without_the_dataset_is_one_sentence(
    read: Any, files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
