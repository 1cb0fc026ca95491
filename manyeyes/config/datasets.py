"""What `data=...` can choose: synthetic images, a prepared dataset, or one of the known datasets by name."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyeyes.core.population import Population
from manyeyes.core.registry import Option, option, options_of
from manyeyes.data.partition import repartition as repartition_examples
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.reader import open_population
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic


@dataclass(frozen=True)
class Repartition:
    """Give the examples of a dataset to new clients, as the run's seed decides."""

    num_clients: int = option(0, "new clients; 0: the dataset's own users")
    classes_per_client: int = option(4, "classes that each new client holds")


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
    repartition: Repartition = field(default=Repartition(), metadata={"help": "give its examples to new clients"})


@dataclass(frozen=True)
class DataSource:
    """How `data=NAME` makes a population."""

    load: Callable[[dict[str, Any], int], Population]  # called with the options and the run's seed
    options: tuple[Option, ...]


def load_synthetic(options: dict[str, Any], seed: int) -> Population:
    """Return synthetic images, which have a seed of their own."""
    del seed
    task = options.pop("task")
    return make_synthetic(SyntheticImages(**options)).task(task)


def load_store(options: dict[str, Any], seed: int) -> Population:
    """Return the population of a prepared dataset, given to new clients if that is asked for."""
    population = open_population(Path(options["path"]), options["task"] or None)
    clients = Repartition(**options["repartition"])
    if not clients.num_clients:
        return population
    return repartition_examples(population, clients.num_clients, clients.classes_per_client, seed)


def _store_at(path: str) -> DataSource:
    """Return the source of a known dataset, whose prepared form is looked for at `path`."""
    return DataSource(
        load_store, tuple(replace(one, default=path) if one.name == "path" else one for one in options_of(Store))
    )


DATA_SOURCES: dict[str, DataSource] = {
    "synthetic": DataSource(load_synthetic, options_of(Synthetic)),
    "store": DataSource(load_store, options_of(Store)),
    **{name: _store_at(f"data/{name}") for name in DATASETS},
}
