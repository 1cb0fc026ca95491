"""Datasets that `datasets` writes: found columns, pixels and users, and one sentence for each that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import manyeyes as me
from manyeyes.config.build import build_population
from manyeyes.core.registry import build
from manyeyes.data.datasets import huggingface
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store

COUNT = 24
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
CLASS = datasets.ClassLabel(names=["cat", "dog", "owl"])


def make(**changes: Any) -> datasets.Dataset:
    """Return a dataset of images, classes and users; a change replaces a column (None: leaves it out) and its type."""
    columns: dict[str, tuple[Any, Any]] = {
        "image": ([Image.fromarray(pixels) for pixels in PIXELS], datasets.Image()),
        "label": (np.arange(COUNT) % 3, CLASS),
        "user_id": ([f"u{number % 4}" for number in range(COUNT)], datasets.Value("string")),
    }
    columns = {name: column for name, column in {**columns, **changes}.items() if column is not None}
    features = datasets.Features({name: kind for name, (_, kind) in columns.items()})
    return datasets.Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write_arrow(folder: Path) -> None:
    make().save_to_disk(str(folder))


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    make().to_parquet(str(folder / "train-00000-of-00001.parquet"))


def write_imagefolder(folder: Path) -> None:
    for row, pixels in enumerate(PIXELS):
        path = folder / "train" / CLASS.names[row % 3] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("write", [write_arrow, write_parquet])
def test_a_folder_that_datasets_wrote_has_the_same_images_labels_and_users(write: Any, tmp_path: Path) -> None:
    write(tmp_path / "raw")
    population = build("dataset", {"name": f"hf:{tmp_path / 'raw'}"})
    rows = np.asarray(population.columns["image_id"])
    assert np.array_equal(population.pixels(np.arange(COUNT)), PIXELS[rows])
    assert np.array_equal(population.labels.ids, rows % 3)
    assert [population.user_name(user) for user in population.owners(np.arange(COUNT))] == [
        f"u{row % 4}" for row in rows
    ]
    assert population.classes == ("cat", "dog", "owl")
    assert sorted(np.unique(np.asarray(population.columns["split"])).tolist()) == ["test", "train"]


def test_an_imagefolder_gets_users_from_a_partition(tmp_path: Path) -> None:
    write_imagefolder(tmp_path / "raw")
    manifest = huggingface.read_manifest(tmp_path / "raw", partition="iid", users=3)
    write_store(manifest, tmp_path / "store", None, processes=1)
    population = open_population(tmp_path / "store")
    assert population.num_examples.tolist() == [8, 8, 8]
    assert population.classes == ("cat", "dog", "owl")


def test_a_dataset_trains_with_its_official_test_split(tmp_path: Path, command: Any) -> None:
    datasets.DatasetDict(train=make(), test=make()).save_to_disk(str(tmp_path / "raw"))
    small = ("model=linear", "rounds=1", "algorithm.cohort_size=2", "engine=reference", "folder=run")
    trained = command("run", f"data=hf:{tmp_path / 'raw'}", *small)
    assert (trained.code, trained.err) == (0, "")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"hf:{tmp_path / 'raw'}" in config


@pytest.mark.slow
def test_a_partition_gives_the_training_images_to_users(tmp_path: Path, command: Any) -> None:
    datasets.DatasetDict(train=make(), test=make()).save_to_disk(str(tmp_path / "raw"))
    prepared = command("data", "prepare", "hf", str(tmp_path / "raw"), "--partition", "dirichlet", "--users", "4")
    assert (prepared.code, prepared.err) == (0, "")
    meta = json.loads((tmp_path / "data" / "hf" / "meta.json").read_text())
    assert (meta["users"], meta["examples"]) == (5, 2 * COUNT)  # and one of the test images


def test_a_run_without_users_asks_for_a_partitioner(tmp_path: Path) -> None:
    make(user_id=None).save_to_disk(str(tmp_path / "raw"))
    data = {"name": f"hf:{tmp_path / 'raw'}", "user": "none"}
    partitioner = {"name": "iid", "num_clients": 6}
    population = build_population({"data": data, "partitioner": partitioner, "seed": 0})
    assert population.num_examples.tolist() == [4] * 6


def test_lists_of_classes_are_several_labels(tmp_path: Path) -> None:
    rows = [[0, 2] if row % 2 else [1] for row in range(COUNT)]
    make(label=None, tags=(rows, datasets.List(CLASS))).save_to_disk(str(tmp_path / "raw"))
    labels = huggingface.read_manifest(tmp_path / "raw").labels["label"]
    assert isinstance(labels, me.MultiLabels)
    assert labels.counts().tolist() == [12, 12, 12]


def test_examples_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    make(label=([-1] * 4 + [0] * (COUNT - 4), CLASS)).save_to_disk(str(tmp_path / "raw"))
    manifest = huggingface.read_manifest(tmp_path / "raw")
    assert len(manifest) == COUNT - 4
    assert manifest.notes["examples without a label, left out"]["count"] == 4


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"image": None}, {}, r"no column of images, among label, user_id: name one with image=COLUMN"),
        (
            {"kind": (np.zeros(COUNT, int), CLASS)},
            {},
            r"several columns of labels, label, kind, among image, label, user_id, kind: name one with label=COLUMN",
        ),
        ({"label": None}, {}, r"no column of labels, among image, user_id: name one with label=COLUMN"),
        (
            {"user_id": None},
            {},
            r"no column of users, among image, label: name one with user=COLUMN, or make users with partition=iid",
        ),
        ({}, {"user": "owner"}, r"has no column 'owner': set user to one of image, label, user_id"),
        ({}, {"partition": "fair"}, r"Unknown partition 'fair': choose dirichlet, classes, iid"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_one_sentence(
    changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(**changes).save_to_disk(str(tmp_path / "raw"))
    with pytest.raises(ValueError, match=message):
        huggingface.read_manifest(tmp_path / "raw", **options)


def test_an_unreachable_name_is_one_sentence(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    outcome = command("data", "prepare", "hf", "unknown/nothing")
    assert outcome.code == 2
    assert outcome.err.startswith("manyeyes: unknown/nothing cannot be loaded as a dataset (")
    assert outcome.err.endswith("check the name and the connection, or give a folder\n")
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
