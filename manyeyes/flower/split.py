"""One store for each user of a population, as clients would hold them: for trying a federation on one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.data.manifest import Manifest
from manyeyes.data.store import reader as store
from manyeyes.data.store.examples import OWN
from manyeyes.flower.client import NUMBER


class PopulationImages:
    """The images of some examples of a population, as a source to write a store from."""

    def __init__(self, population: Population, examples: Ints, name: str) -> None:
        self._population, self._examples, self._name = population, examples, name

    def __len__(self) -> int:
        return len(self._examples)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self._population.pixels(self._examples[index : index + 1])[0]

    def name(self, index: int) -> str:
        return f"photo {index} of {self._name}"


def split(population: Population, out: Path, task: str = "", most: int = 0) -> list[Path]:
    """Write the stores of the users who have photos to train on, at most so many; 0: of all of them."""
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose a new folder")
    column = population.columns.get("split")
    trains = np.ones(len(population), bool) if column is None else np.asarray(column) == "train"
    users = np.unique(population.owners(np.flatnonzero(trains)))
    made = []
    for user in users[:most] if most else users:
        path = out / f"{int(population.user_ids[user]):06d}"
        store.write(_listing(population, int(user), task or "labels"), path, None, processes=1)
        made.append(path)
    return made


def _listing(population: Population, user: int, task: str) -> Manifest:
    """All that one user holds; the labels that are predicted come first."""
    mine, name = population.examples(user), population.user_name(user)
    columns: dict[str, Any] = {n: c for n, c in population.columns.items() if n not in OWN}
    labels = {task: population.labels} | {n: c for n, c in columns.items() if not isinstance(c, np.ndarray)}
    split = population.columns.get("split")
    plain = {n: np.asarray(c)[mine] for n, c in columns.items() if isinstance(c, np.ndarray)}
    return Manifest(
        dataset="client",
        source=PopulationImages(population, mine, name),
        image=np.arange(len(mine)),
        users=np.full(len(mine), name),
        split=np.full(len(mine), "train") if split is None else np.asarray(split)[mine],
        labels={n: _whole(labels[n]).take(mine) for n in labels},
        columns=plain | {NUMBER: np.full(len(mine), population.user_ids[user])},
    )


def _whole(labels: Any) -> Any:
    return replace(labels, ids=np.asarray(labels.ids)) if isinstance(labels, SingleLabels) else labels
