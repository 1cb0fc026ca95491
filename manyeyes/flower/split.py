"""One store per user of a population, as clients would have them: to try a federation on one machine."""

from pathlib import Path

import numpy as np

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.data.store.examples import RESERVED_COLUMNS
from manyeyes.data.store.writer import write_store
from manyeyes.flower.client import USER_ID_COLUMN


def split(population: Population, folder: Path, task: str = "", max_users: int = 0) -> list[Path]:
    """Write the stores of the users with training images, or of the first `max_users` of them; return their paths."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder.")
    manifest = _manifest(population, task or "labels")
    users = np.unique(population.owners(np.flatnonzero(manifest.split == "train"))).tolist()
    users = users[:max_users] if max_users else users
    paths = [folder / f"{int(population.user_ids[user]):06d}" for user in users]
    for user, path in zip(users, paths, strict=True):
        write_store(manifest.take(population.examples(user)), path, None, processes=1)
    return paths


def _manifest(population: Population, task: str) -> Manifest:
    """Return the manifest of all users' examples; the labels of `task` come first."""
    columns = {name: column for name, column in population.columns.items() if name not in RESERVED_COLUMNS}
    labels = {name: column for name, column in columns.items() if isinstance(column, SingleLabels | MultiLabels)}
    user_names = np.array([population.user_name(user) for user in range(len(population.user_ids))])
    owners = population.owners(np.arange(len(population)))
    return Manifest(
        dataset="client",
        source=Pixels(population.images),
        image=population.image_indices,
        users=user_names[owners],
        split=np.asarray(population.columns.get("split", np.full(len(population), "train"))),
        labels={task: population.labels} | labels,
        columns={name: np.asarray(column) for name, column in columns.items() if name not in labels}
        | {USER_ID_COLUMN: population.user_ids[owners]},
        caveats=population.caveats,
    )
