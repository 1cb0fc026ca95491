"""The datasets by name: how to download, read and imitate each, as `datasets/datasets.toml` declares it."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyeyes.core.registry import register
from manyeyes.data.datasets import huggingface  # noqa: F401  # which registers the datasets of its hub
from manyeyes.data.download.archive import SUFFIXES, extract_all
from manyeyes.data.download.fetch import RemoteFile, download_progress, fetch
from manyeyes.data.manifest import Manifest, check_choice
from manyeyes.data.store.reader import load_store
from manyeyes.data.synthetic.dataset import SyntheticImages
from manyeyes.io.packages import optional_packages


@dataclass(frozen=True)
class Dataset:
    """How to read, download and imitate one dataset."""

    description: str
    module: str  # with the functions below; imported when it is needed, since readers need optional packages
    options: Mapping[str, Any] = field(default_factory=dict)  # of both functions
    size: int | None = None  # default pixels per side of a prepared dataset; None: those of the images
    remote_files: tuple[RemoteFile, ...] = ()  # archives are extracted
    on_hub: bool = False  # the raw files may also be the name of a dataset of a hub

    @property
    def read_manifest(self) -> Callable[..., Manifest]:
        """The reader of the raw folder; its keyword options are the command's."""
        return self._function("read_manifest")

    @property
    def write_synthetic(self) -> Callable[[SyntheticImages, Path], None]:
        """The function that writes synthetic images in the dataset's raw format."""
        return self._function("write_synthetic")

    def _function(self, name: str) -> Callable[..., Any]:
        with optional_packages():
            return partial(getattr(import_module(f"manyeyes.data.datasets.{self.module}"), name), **self.options)

    def download(self, raw: Path) -> None:
        """Download and extract what is missing; each step resumes where it stopped."""
        for remote in self.remote_files:
            with download_progress(f"downloading {remote.name}") as progress:
                fetch(remote, raw, progress)
        archives = [raw / remote.name for remote in self.remote_files if remote.name.endswith(SUFFIXES)]
        with download_progress("extracting the archives") as progress:
            extract_all(archives, raw, progress=progress)


def dataset(name: str) -> Dataset:
    check_choice("dataset", name, DATASETS)
    return DATASETS[name]


def _declared(table: dict[str, Any]) -> Dataset:
    """Return the dataset that a table of `datasets.toml` declares."""
    remote_files = (
        RemoteFile(entry["url"].format(number), entry.get("md5"))
        for entry in table.get("remote_files", ())
        for number in range(entry.get("count", 1))
    )
    return Dataset(
        table["description"],
        table["module"],
        table.get("options", {}),
        table.get("size"),
        tuple(remote_files),
        table.get("on_hub", False),
    )


_TABLES = tomllib.loads(files("manyeyes.data.datasets").joinpath("datasets.toml").read_text())
DATASETS: dict[str, Dataset] = {}
for _name, _table in _TABLES.items():
    DATASETS[_name] = _declared(_table)
    register("dataset", _name, path=f"data/{_name}")(load_store)
