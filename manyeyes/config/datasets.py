"""What `data=...` can choose: synthetic images, a prepared dataset, or one of the known datasets by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyeyes.core.population import Population
from manyeyes.core.registry import Option, option, options_of
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.reader import open_population
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic


@dataclass(frozen=True)
class Synthetic(SyntheticImages):
    """Synthetic images, with smaller defaults."""

    size: int = option(32, "pixels per side, 32 to 256")
    coarse: int = option(10, "coarse classes")
    fine: int = option(100, "fine classes, each within a coarse one")
    alpha: float = option(1.0, "concentration of users' class mix: small is more skewed")
    task: str = option("single", "what is predicted: single, coarse, fine or rating")


@dataclass(frozen=True)
class Store:
    """A dataset that `manyeyes data prepare` made, or an HDF5 file of FLAIR."""

    path: str = option(help="its folder or file")
    task: str = option("", "which of its labels are predicted; empty: the first ones")


@dataclass(frozen=True)
class DataSource:
    """How `data=NAME` makes a population from its options."""

    load: Callable[..., Population]
    options: tuple[Option, ...]


def load_synthetic(task: str, **options: Any) -> Population:
    """Return synthetic images with the labels of a task."""
    return make_synthetic(SyntheticImages(**options)).task(task)


def load_store(path: str, task: str) -> Population:
    """Return the population of a prepared dataset."""
    return open_population(Path(path), task or None)


def _store_at(path: str) -> DataSource:
    """Return the source of a known dataset, which is prepared at `path` unless the user says otherwise."""
    options = options_of(Store)
    return DataSource(load_store, tuple(replace(o, default=path) if o.name == "path" else o for o in options))


DATA_SOURCES: dict[str, DataSource] = {
    "synthetic": DataSource(load_synthetic, options_of(Synthetic)),
    "store": DataSource(load_store, options_of(Store)),
    **{name: _store_at(f"data/{name}") for name in DATASETS},
}
