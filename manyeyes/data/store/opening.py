"""Opening data that a person has, by its path: a store, or an HDF5 file that others made of FLAIR."""

from __future__ import annotations

from pathlib import Path

from manyeyes.core.population import Population
from manyeyes.data.store import reader as store
from manyeyes.data.store.hdf5 import open_hdf5


def open_population(path: Path, task: str | None = None) -> Population:
    """The population at `path`, with the labels of `task` or those that come first."""
    if path.is_file():
        return open_hdf5(path, task or "coarse")
    return store.open(path, task)
