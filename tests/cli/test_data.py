"""From raw files to a trained model for every dataset: synthetic raw files, a prepared dataset, a run, a page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from manyeyes.cli.data import DATASET_OPTIONS, options
from manyeyes.core.population import Labels, MultiLabels, SingleLabels
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.data.partition import give_new_users
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.dataset import SyntheticImages

SMALL = ("--users", "12", "--images-per-user", "10", "--size", "32", "--coarse", "5", "--fine", "20")
SYNTHESIZE = {
    "flickr_aes": ("--users", "6", "--images-per-user", "130", "--size", "32"),
    "cifar100": ("--fine", "100"),
}
PREPARE = {
    "cifar10": ("--users", "6", "--alpha", "1"),
    "cifar100": ("--users", "6", "--partition", "iid"),
    "flair": ("--size", "32"),
    "inaturalist": ("--size", "32", "--split", "geo_100"),
    "landmarks": ("--size", "32", "--encoding", "jpeg"),
    "flickr_aes": ("--size", "32", "--raters", "2"),
    "folder": ("--size", "32", "--split", "per_user"),
    "hf": (),
    "femnist": (),
    "celeba": ("--size", "32"),
    "domains": ("--partition", "iid", "--users", "2"),
    "medmnist": ("--users", "6"),
    "tiny_imagenet": ("--users", "6"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_a_synthetic_dataset_is_prepared_trained_on_and_inspected(name: str, tmp_path: Path, command: Any) -> None:
    assert command("data", "synthesize", name, "--raw", "raw", *SMALL, *SYNTHESIZE.get(name, ())).code == 0
    raw = ("raw",) if DATASETS[name].on_hub else ("--raw", "raw")
    prepared = command("data", "prepare", name, *raw, "--processes", "1", *PREPARE[name])
    assert (prepared.code, prepared.err) == (0, "")
    meta = json.loads((tmp_path / "data" / name / "meta.json").read_text())
    assert f"{meta['examples']:,} examples" in prepared.out
    run = command("run", f"data={name}", "model=linear", "rounds=1", "algorithm.cohort_size=2", "engine.threads=1")
    assert (run.code, run.err) == (0, "")
    inspected = command("data", "inspect", name, "--out", "page")
    assert (inspected.code, inspected.err) == (0, "")
    assert "<h1" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.slow
def test_a_prepared_dataset_is_found_by_its_name(tmp_path: Path, command: Any) -> None:
    assert command("data", "synthesize", "cifar10", "--raw", "raw", *SMALL).code == 0
    assert command("data", "prepare", "cifar10", "--raw", "raw", "--users", "6").code == 0
    assert command("data", "inspect", "cifar10").code == 0
    assert (tmp_path / "data" / "cifar10_inspected" / "index.html").exists()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("prepare", "nothing", "--raw", "x"), "nothing"),
        (("prepare", "cifar10"), "--raw"),
        (("prepare", "cifar10", "--raw", "nowhere"), "nowhere"),
        (("prepare", "cifar10", "--raw", ".", "--alpha", "much"), "much"),
        (("synthesize", "nothing", "--raw", "x"), "nothing"),
        (("synthesize", "flair", "--raw", "x", "--users", "0"), "users"),
        (("inspect", "nowhere"), "nowhere"),
        ((), "action"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(
    argv: tuple[str, ...], named: str, tmp_path: Path, command: Any
) -> None:
    outcome = command("data", *argv)
    assert outcome.code in (1, 2)
    assert named in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def paint(*sizes: int) -> None:
    """Write images of these sizes and a table of them."""
    Path("raw").mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", (size, size), (number, 0, 0)).save(f"raw/{number}.png")
    rows = [f"{number}.png,u{number % 2},c{number % 2},{number}\n" for number in range(len(sizes))]
    Path("raw/mine.csv").write_text("path,user,label,weight\n" + "".join(rows))


def test_a_table_is_prepared_at_the_size_of_its_images_with_all_columns(command: Any) -> None:
    paint(28, 28, 28, 28)
    prepared = command("data", "prepare", "folder", "--raw", "raw/mine.csv", "--split", "per_user", "--processes", "1")
    assert (prepared.code, prepared.err) == (0, "")
    assert prepared.out.splitlines()[0].endswith("/folder: 4 images of 28 x 28 pixels, about 9.4 kB to write")
    population = open_population(Path("data/folder"))
    assert population.image_shape == (28, 28, 3)
    assert np.asarray(population.columns["weight"]).tolist() == [0, 2, 1, 3]


def test_any_dataset_is_given_to_new_users(command: Any) -> None:
    paint(*[28] * 12)
    prepared = command("data", "prepare", "folder", "--raw", "raw/mine.csv", "--processes", "1",
        "--partition", "classes", "--users", "2", "--classes-per-client", "1")  # fmt: skip
    assert (prepared.code, prepared.err) == (0, "")
    population = open_population(Path("data/folder"))
    assert population.user_names is not None and population.user_names.tolist() == ["0", "1"]
    assert isinstance(population.labels, SingleLabels)
    assert [len(set(population.labels.ids[population.examples(user)])) for user in (0, 1)] == [1, 1]
    assert set(np.asarray(population.columns["split"])) == {"train", "test"}


def test_the_partitioners_of_flower_divide_users_of_leaf_as_the_library_does(tmp_path: Path) -> None:
    library = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    femnist = DATASETS["femnist"]
    femnist.write_synthetic(SyntheticImages(6, 32, images_per_user=10), tmp_path)
    partition, read = "flwr:DirichletPartitioner alpha=0.5 min_partition_size=1", femnist.read_manifest(tmp_path)
    manifest, labels = give_new_users(read, partition=partition, users=3, seed=5), read.labels["label"]
    assert isinstance(labels, SingleLabels)
    own = library.DirichletPartitioner(3, "label", 0.5, min_partition_size=1, seed=5)
    own.dataset = datasets.Dataset.from_dict({"label": labels.ids, "row": np.arange(60)})
    for user in range(3):
        images = manifest.image[manifest.users == str(user)]
        assert images.tolist() == sorted(own.load_partition(user)["row"][:])


def test_images_of_several_sizes_need_a_size_and_nothing_is_written(tmp_path: Path, command: Any) -> None:
    paint(28, 28, 32, 64)
    prepared = command("data", "prepare", "folder", "--raw", "raw/mine.csv", "--split", "per_user")
    sizes = "3 sizes from 28 x 28 to 64 x 64 pixels; 2 of the 4 that were read have 28 x 28"
    assert prepared.code == 2
    assert f"{sizes}: choose the pixels per side with size, such as --size 224" in prepared.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_each_skipped_file_is_named_with_its_reason(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("raw/anna/cat")
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    Image.new("RGB", (8, 8)).save(folder / "b.png")
    (folder / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    (folder / "notes.txt").touch()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    prepared = command("data", "prepare", "folder", "--raw", "raw", "--split", "per_user", "--processes", "1")
    assert "not an image file: 1 (see prepare.log)" in prepared.out
    assert re.search(r"HEIC, which needs: pip install 'pillow.heif.*': 1 \(see prepare\.log\)", prepared.out)
    log = Path("data/folder/prepare.log").read_text()
    assert "not an image file\tanna/cat/notes.txt\n" in log
    assert re.search("^HEIC, .*\tanna/cat/IMG_1.HEIC$", log, re.MULTILINE)


def test_raw_files_are_not_overwritten(tmp_path: Path, command: Any) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    outcome = command("data", "synthesize", "cifar10", "--raw", ".", *SMALL)
    assert (outcome.code, outcome.err) == (2, "manyeyes: . is not empty: choose a new folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_labels_without_a_class_are_refused_in_one_sentence(tmp_path: Path, command: Any) -> None:
    """As in a FLAIR whose images have no fine labels."""
    labels: dict[str, Labels] = {
        "coarse": SingleLabels(np.zeros(2, int), ("cat",)),
        "fine": MultiLabels.from_lists([[], []], ()),
    }
    images = Pixels(np.zeros((2, 32, 32, 3), np.uint8))
    split = np.array(["train", "test"])
    manifest = Manifest("store", images, np.arange(2), np.array(["a", "b"]), split, labels)
    write_store(manifest, tmp_path / "store", 32)
    outcome = command("data", "inspect", "store", "--task", "fine")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("manyeyes: store has no classes in the labels of --task=fine")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_every_option_of_a_dataset_has_a_help_text() -> None:
    for name, dataset in DATASETS.items():
        for option in options(dataset):
            assert DATASET_OPTIONS[option], (name, option)
    assert options(DATASETS["cifar10"])["users"] == (int, 100)
    assert options(DATASETS["cifar10"])["splits"] == (Path, None)


@pytest.mark.slow
def test_an_hdf5_file_of_pfl_research_is_trained_on_and_inspected_without_preparation(
    tmp_path: Path, command: Any
) -> None:
    """The file is written as pfl-research's `prepare_dataset.py` does, not by our own code."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "flair.h5", "w") as file:
        for split, num_users in (("train", 5), ("val", 1), ("test", 2)):
            for user in range(num_users):
                group, num_images = file.create_group(f"{split}/{split}{user}@N00"), user + 1
                rows = np.arange(num_images, dtype=np.uint16)
                group["images"] = rng.integers(0, 256, (num_images, 32, 32, 3), np.uint8)
                group["image_ids"] = np.array([f"{split}{user}-{row}".encode() for row in rows])
                group["labels_row"], group["labels_col"] = rows, (rows % 3).astype(np.uint8)
                group["fine_grained_labels_row"], group["fine_grained_labels_col"] = rows, (rows % 5).astype(np.uint16)
        file["metadata/label_mapping"] = json.dumps({name: i for i, name in enumerate("abc")})
        file["metadata/fine_grained_label_mapping"] = json.dumps({name: i for i, name in enumerate("defgh")})
    content = (tmp_path / "flair.h5").read_bytes()
    for task, num_classes in (("coarse", 3), ("fine", 5)):
        settings = ("data.path=flair.h5", f"data.task={task}", "model=linear", "rounds=2", "algorithm.cohort_size=2")
        outcome = command("run", "data=store", *settings, "engine.threads=1", f"folder={task}")
        assert (outcome.code, outcome.err) == (0, "")
        assert len((tmp_path / task / "per_class.csv").read_text().splitlines()) == 1 + num_classes
    assert command("data", "inspect", "flair.h5", "--out", "page").code == 0
    assert (tmp_path / "flair.h5").read_bytes() == content


@pytest.mark.slow
def test_a_folder_of_images_that_are_not_square_is_prepared_with_notes(tmp_path: Path, command: Any) -> None:
    for user in range(10):
        folder = tmp_path / "photos" / f"user{user}" / "dog"
        folder.mkdir(parents=True)
        Image.new("RGB", (12, 8)).save(folder / "photo.png")
    (tmp_path / "photos" / "user0" / "cat").mkdir()
    Image.new("RGB", (12, 8)).save(tmp_path / "photos" / "user0" / "cat" / "photo.png")
    outcome = command("data", "prepare", "folder", "--raw", "photos", "--processes", "1")
    assert "classes have at most one training image: cat" in outcome.out
    assert "note: images of 8 x 12 pixels are not square, and lenet and linear need squares: prepare" in outcome.out
    failed = command("run", "data=folder", "model=linear", "rounds=1", "algorithm.cohort_size=2", "engine.threads=1")
    fix = "prepare the images as squares (manyeyes data prepare ... --size 8), or give a model that takes images which"
    assert (failed.code, fix in failed.err) == (2, True)
