"""docs/formats.md describes every file of a run folder and of a prepared dataset, and every field in them."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import manyeyes as me
from manyeyes.cli import FAILED, INTERRUPTED, USAGE_ERROR
from manyeyes.core.population import Population
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.data.store.writer import write_store
from manyeyes.training import run_files

PAGE = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
NAMES = set(re.findall(r"`([^`\s]+)`", PAGE))


def undocumented(names: Iterable[str]) -> list[str]:
    """Return the names that the page lacks; `user_*` on the page stands for all names that begin so."""
    prefixes = tuple(name.removesuffix("*") for name in NAMES if name.endswith("*"))
    return [name for name in names if name not in NAMES and not name.startswith(prefixes)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    population = me.make_synthetic(me.SyntheticImages(users=12, images_per_user=6, size=32, coarse=3, fine=3))
    algorithm = me.fedper(head_layers=1, cohort_size=3)
    me.train(population, "linear", algorithm, rounds=2, folder=folder, metrics=["ece"], engine="reference")
    return folder


def test_every_file_of_a_run_is_described(run: Path) -> None:
    constants = {value for name, value in vars(run_files).items() if re.fullmatch(r"[A-Z_]+_FILE", name)}
    constants -= {run_files.OLD_DATASET_STATS_FILE, run_files.LOCKS_FILE}
    assert not undocumented(sorted(constants | {path.name for path in run.iterdir()}))


def test_every_field_of_an_event_is_described(run: Path) -> None:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not undocumented({name for event in events for name in event})


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "model.safetensors"])
def test_every_entry_of_the_metadata_of_tensors_is_described(run: Path, file: str) -> None:
    with safe_open(run / file, "pt") as tensors:
        metadata = tensors.metadata()
    content = json.loads(next(text for name, text in metadata.items() if name != "crc32"))
    assert not undocumented([*metadata, *content])


def test_every_tensor_of_a_checkpoint_is_described(run: Path) -> None:
    with safe_open(run / "checkpoint.safetensors", "pt") as tensors:
        assert not undocumented(tensors.keys())


def test_every_field_of_a_prepared_dataset_is_described(population: Population, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    users = population.owners(np.arange(len(population))).astype(str)
    split = np.asarray(population.columns["split"])
    pixels = Pixels(population.pixels(np.arange(len(population))))
    manifest = Manifest("small", pixels, np.arange(len(users)), users, split, {"label": population.labels})
    write_store(manifest, tmp_path / "store", size=None, processes=1)
    meta = json.loads((tmp_path / "store" / "meta.json").read_text())
    columns = parquet.read_schema(tmp_path / "store" / "examples.parquet").names
    files = [path.name for path in (tmp_path / "store").iterdir()]
    assert not undocumented([*meta, *columns, *files])


def test_the_exit_codes_are_those_of_the_commands() -> None:
    assert re.findall(r"^\| (\d+) \|", PAGE, re.M) == ["0", *map(str, (FAILED, USAGE_ERROR, INTERRUPTED))]
