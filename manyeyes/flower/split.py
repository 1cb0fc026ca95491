"""One store per user of a population, as clients would have them: to try a federation on one machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.data.manifest import Manifest
from manyeyes.data.store.examples import RESERVED_COLUMNS
from manyeyes.data.store.writer import write_store
from manyeyes.flower.client import USER_ID_COLUMN


class PopulationImages:
    """Images of some examples of a population, as a source for a new store."""

    def __init__(self, population: Population, examples: Ints, user_name: str) -> None:
        self._population, self._examples, self._user_name = population, examples, user_name

    def __len__(self) -> int:
        return len(self._examples)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self._population.pixels(self._examples[index : index + 1])[0]

    def name(self, index: int) -> str:
        return f"image {index} of {self._user_name}"


def split(population: Population, folder: Path, task: str = "", max_users: int = 0) -> list[Path]:
    """Write the stores of the users with training images, or of the first `max_users` of them; return their paths."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder.")
    column = population.columns.get("split")
    is_train = np.ones(len(population), bool) if column is None else np.asarray(column) == "train"
    users = np.unique(population.owners(np.flatnonzero(is_train)))
    paths = []
    for user in users[:max_users] if max_users else users:
        path = folder / f"{int(population.user_ids[user]):06d}"
        write_store(_user_manifest(population, int(user), task or "labels"), path, None, processes=1)
        paths.append(path)
    return paths


def _user_manifest(population: Population, user: int, task: str) -> Manifest:
    """Return the manifest of one user's examples; the labels of `task` come first."""
    examples, name = population.examples(user), population.user_name(user)
    columns: dict[str, Any] = {n: c for n, c in population.columns.items() if n not in RESERVED_COLUMNS}
    labels = {task: population.labels} | {n: c for n, c in columns.items() if not isinstance(c, np.ndarray)}
    values = {n: np.asarray(c)[examples] for n, c in columns.items() if isinstance(c, np.ndarray)}
    split = population.columns.get("split")
    return Manifest(
        dataset="client",
        source=PopulationImages(population, examples, name),
        image=np.arange(len(examples)),
        users=np.full(len(examples), name),
        split=np.full(len(examples), "train") if split is None else np.asarray(split)[examples],
        labels={n: _in_memory(column).take(examples) for n, column in labels.items()},
        columns=values | {USER_ID_COLUMN: np.full(len(examples), population.user_ids[user])},
    )


def _in_memory(labels: Any) -> Any:
    """Return labels whose ids are an array, not a memory map."""
    return replace(labels, ids=np.asarray(labels.ids)) if isinstance(labels, SingleLabels) else labels
