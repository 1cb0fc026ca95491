"""From nothing to a trained model, for every dataset: a stand-in in its raw format, its store, a run, a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from manyeyes.cli.data import MEANINGS, options
from manyeyes.core.population import Labels, MultiLabels, SingleLabels
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.writer import write_store

SMALL = ("--users", "12", "--photos", "10", "--size", "32", "--coarse", "5", "--fine", "20")
MAKE = {"flickr_aes": ("--users", "6", "--photos", "130", "--size", "32"), "cifar100": ("--fine", "100")}
PREPARE = {
    "cifar10": ("--users", "6", "--alpha", "1"),
    "cifar100": ("--users", "6", "--partition", "iid"),
    "flair": ("--size", "32"),
    "inaturalist": ("--size", "32", "--split", "geo_100"),
    "landmarks": ("--size", "32", "--encoding", "jpeg"),
    "flickr_aes": ("--size", "32", "--raters", "2"),
    "folder": ("--size", "32", "--split", "per_user"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_stand_in_is_prepared_trained_on_and_shown(name: str, tmp_path: Path, command: Any) -> None:
    assert command("data", "make", name, "--raw", "raw", *SMALL, *MAKE.get(name, ())).code == 0
    prepared = command("data", "prepare", name, "--raw", "raw", "--processes", "1", *PREPARE[name])
    assert (prepared.code, prepared.err) == (0, "")
    meta = json.loads((tmp_path / "data" / name / "meta.json").read_text())
    assert f"{meta['examples']:,} examples" in prepared.out
    run = command("run", f"data={name}", "model=linear", "rounds=1", "algorithm.cohort=2", "engine.threads=1")
    assert (run.code, run.err) == (0, "")
    shown = command("data", "show", name, "--out", "page")
    assert (shown.code, shown.err) == (0, "")
    assert "<h1" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("prepare", "nothing", "--raw", "x"), "nothing"),
        (("prepare", "cifar10"), "--raw"),
        (("prepare", "cifar10", "--raw", "nowhere"), "nowhere"),
        (("prepare", "cifar10", "--raw", ".", "--alpha", "much"), "much"),
        (("make", "nothing", "--raw", "x"), "nothing"),
        (("make", "flair", "--raw", "x", "--users", "0"), "users"),
        (("show", "nowhere"), "nowhere"),
        ((), "action"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_changes_nothing(
    words: tuple[str, ...], named: str, tmp_path: Path, command: Any
) -> None:
    found = command("data", *words)
    assert found.code in (1, 2)
    assert named in found.err
    assert found.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_labels_without_any_class_are_one_sentence(tmp_path: Path, command: Any) -> None:
    """As a FLAIR is whose images have no fine labels."""
    labels: dict[str, Labels] = {
        "coarse": SingleLabels(np.zeros(2, int), ("cat",)),
        "fine": MultiLabels.from_lists([[], []], ()),
    }
    images = Pixels(np.zeros((2, 32, 32, 3), np.uint8))
    split = np.array(["train", "test"])
    write_store(Manifest("some", images, np.arange(2), np.array(["a", "b"]), split, labels), tmp_path / "some", 32)
    found = command("data", "show", "some", "--task", "fine")
    assert (found.code, found.out, found.err.count("\n")) == (1, "", 1)
    assert found.err.startswith("manyeyes: some has no class in these labels")
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_every_option_of_a_dataset_has_a_meaning() -> None:
    for name, dataset in DATASETS.items():
        for option in options(dataset):
            assert MEANINGS[option], (name, option)


def test_an_hdf5_file_of_pfl_research_is_trained_on_and_shown_in_place(tmp_path: Path, command: Any) -> None:
    """Written here as pfl-research's `prepare_dataset.py` does, not by our own code."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "flair.h5", "w") as file:
        for split, users in (("train", 5), ("val", 1), ("test", 2)):
            for user in range(users):
                group, images = file.create_group(f"{split}/{split}{user}@N00"), user + 1
                rows = np.arange(images, dtype=np.uint16)
                group["images"] = rng.integers(0, 256, (images, 32, 32, 3), np.uint8)
                group["image_ids"] = np.array([f"{split}{user}-{row}".encode() for row in rows])
                group["labels_row"], group["labels_col"] = rows, (rows % 3).astype(np.uint8)
                group["fine_grained_labels_row"], group["fine_grained_labels_col"] = rows, (rows % 5).astype(np.uint16)
        file["metadata/label_mapping"] = json.dumps({name: i for i, name in enumerate("abc")})
        file["metadata/fine_grained_label_mapping"] = json.dumps({name: i for i, name in enumerate("defgh")})
    before = (tmp_path / "flair.h5").read_bytes()
    for task, classes in (("coarse", 3), ("fine", 5)):
        words = ("data.path=flair.h5", f"data.task={task}", "model=linear", "rounds=2", "algorithm.cohort=2")
        found = command("run", "data=store", *words, "engine.threads=1", f"folder={task}")
        assert (found.code, found.err) == (0, "")
        assert len((tmp_path / task / "per_class.csv").read_text().splitlines()) == 1 + classes
    assert command("data", "show", "flair.h5", "--out", "page").code == 0
    assert (tmp_path / "flair.h5").read_bytes() == before
