"""The datasets by name: every file of `datasets/` may declare some."""

from importlib import import_module
from pkgutil import iter_modules

from manyeyes.data import datasets
from manyeyes.data.dataset import Dataset
from manyeyes.data.manifest import check_choice

DATASETS: dict[str, Dataset] = {
    name: dataset
    for module in iter_modules(datasets.__path__)
    for name, dataset in getattr(import_module(f"{datasets.__name__}.{module.name}"), "DATASETS", {}).items()
}


def dataset(name: str) -> Dataset:
    """Return a dataset by its name."""
    check_choice("dataset", name, DATASETS)
    return DATASETS[name]
