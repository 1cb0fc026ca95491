"""Caveats go with the data: from a raw folder of synthetic images to populations and their parts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manyeyes.core.population import SYNTHETIC, Population, caveats_of
from manyeyes.data.datasets import flair
from manyeyes.data.manifest import SYNTHETIC_MARKER, SYNTHETIC_NOTES, Manifest
from manyeyes.data.partition import IIDPartitioner, repartition
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.flower.split import split as split_by_user
from manyeyes.training.run_files import with_caveats

OPTIONS: dict[str, dict[str, Any]] = {
    "flickr_aes": {"raters": 2, "min_ratings": 4, "min_per_score": 0},
    "cifar10": {"users": 3, "alpha": 1.0},
}
OPTIONS |= dict.fromkeys(("cifar100", "medmnist", "tiny_imagenet"), OPTIONS["cifar10"])


def synthetic_raw(name: str, raw: Path) -> Manifest:
    """Write a raw folder of synthetic images, and return what the dataset's reader finds in it."""
    DATASETS[name].write_synthetic(SyntheticImages(12, 32, 0, 5, 10, images_per_user=8), raw)
    return DATASETS[name].read_manifest(raw, **OPTIONS.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_every_reader_marks_synthetic_images_and_names_their_own_source_and_license(name: str, tmp_path: Path) -> None:
    manifest = synthetic_raw(name, tmp_path)
    assert manifest.caveats[0] == SYNTHETIC
    assert {key: manifest.notes[key] for key in ("source", "license")} == SYNTHETIC_NOTES


def test_parquet_shards_in_a_marked_folder_are_synthetic(tmp_path: Path) -> None:
    rows = {"image": [{"bytes": b""}], "image_id": ["a"], "user_id": ["u"], "labels": [["x"]]}
    table = pa.table(rows | {"fine_grained_labels": [["y"]]})
    (tmp_path / "label_relationship.txt").write_text("y,x\n")
    pq.write_table(table, tmp_path / "train-00000-of-00003.parquet")
    missing = "4 shards missing"  # two of train, and all of val and test
    assert DATASETS["flair"].read_manifest(tmp_path).caveats == (missing,)
    (tmp_path / SYNTHETIC_MARKER).touch()
    assert DATASETS["flair"].read_manifest(tmp_path).caveats == (SYNTHETIC, missing)


def test_a_folder_inside_a_marked_one_is_synthetic(tmp_path: Path) -> None:
    synthetic_raw("folder", tmp_path / "raw")
    inner = next(path for path in (tmp_path / "raw").iterdir() if path.is_dir())
    (tmp_path / "raw" / "few").mkdir()
    inner.rename(tmp_path / "raw" / "few" / inner.name)
    assert DATASETS["folder"].read_manifest(tmp_path / "raw" / "few", split="per_user").caveats == (SYNTHETIC,)


def test_a_store_keeps_the_mark_and_says_which_part_of_the_dataset_it_is(tmp_path: Path) -> None:
    """Of the images that Landmarks' tables list, a tenth has no file, and one more cannot be read."""
    manifest = synthetic_raw("landmarks", tmp_path / "raw")
    listed = len(manifest) + manifest.num_missing
    assert manifest.num_missing == manifest.notes["images without a file, left out"]["count"] > 0
    (tmp_path / "raw" / manifest.source.name(int(manifest.image[0]))).write_bytes(b"")
    summary = write_store(manifest, tmp_path / "store", 32)
    caveats = (SYNTHETIC, f"{len(manifest) - 1} of {listed} examples")
    assert summary.caveats == open_population(tmp_path / "store").caveats == caveats
    assert json.loads((tmp_path / "store" / "meta.json").read_text())["caveats"] == list(caveats)


def test_a_complete_store_of_other_images_has_no_caveats(tmp_path: Path) -> None:
    manifest = synthetic_raw("folder", tmp_path / "raw")
    write_store(replace(manifest, caveats=()), tmp_path / "store", 32)
    assert open_population(tmp_path / "store").caveats == ()


@pytest.fixture(scope="module")
def population() -> Population:
    return make_synthetic(SyntheticImages(6, 32, 0, 3, 6, images_per_user=12, split="per_user"), processes=1)


def test_every_view_of_a_synthetic_population_keeps_the_mark(population: Population) -> None:
    views = {
        "split": population.split("train"),
        "filter": population.filter(np.arange(len(population)) < 5),
        "task": population.task("coarse"),
        "pooled": population.pooled(),
        "repartition": repartition(population.task("single"), IIDPartitioner(3), seed=0),
        "twice": repartition(population.split("train"), IIDPartitioner(3), seed=0).split("test"),
    }
    assert {name: view.caveats for name, view in views.items()} == dict.fromkeys(views, (SYNTHETIC,))


def test_the_stores_of_single_users_keep_the_mark(population: Population, tmp_path: Path) -> None:
    first = split_by_user(population, tmp_path / "clients", max_users=1)[0]
    assert open_population(first).caveats == (SYNTHETIC,)


def test_synthetic_flair_in_hdf5_is_marked_by_its_folder(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "flair.hdf5", "w") as file:
        file["metadata/label_mapping"] = json.dumps({"x": 0})
        user = file.create_group("train/u")
        user["images"] = np.zeros((1, 4, 4, 3), np.uint8)
        user["image_ids"] = np.array([b"a"])
        user["labels_row"], user["labels_col"] = np.zeros(1, np.uint16), np.zeros(1, np.uint8)
    assert open_population(tmp_path / "flair.hdf5").caveats == ()
    (tmp_path / SYNTHETIC_MARKER).touch()
    assert open_population(tmp_path / "flair.hdf5").caveats == (SYNTHETIC,)


def test_caveats_of_several_populations_are_listed_once(population: Population) -> None:
    partial = replace(population, caveats=(SYNTHETIC, "5 of 6 examples"))
    assert caveats_of([population, None, partial]) == (SYNTHETIC, "5 of 6 examples")
    assert with_caveats("run", partial.caveats) == "run (synthetic images; 5 of 6 examples)"
    assert with_caveats("run", ()) == "run"


def test_flair_reads_its_own_raw_files_with_the_mark(tmp_path: Path) -> None:
    synthetic_raw("flair", tmp_path)
    assert flair.read_manifest(tmp_path).caveats == (SYNTHETIC,)
