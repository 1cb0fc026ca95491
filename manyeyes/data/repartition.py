"""Dealing: the examples of a population given anew to other clients, so that one store serves every partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.partition import classes_per_client, within_users


def repartition(population: Population, users: int, classes: int, seed: int) -> Population:
    """All examples to `users` clients of so many classes each, 83/17 to train and test on within each, as in FedPer.

    The seed decides all of it, whoever held the examples before.
    """
    if not isinstance(population.labels, SingleLabels):
        raise ValueError("clients of few classes need one class an example: leave data.users at 0")
    ids = population.columns.get("image_id")
    order = np.argsort(population.image_indices if ids is None else np.asarray(ids), kind="stable")
    owners = classes_per_client(population.labels.ids[order], users, classes, seed)
    split = within_users(owners, seed)
    together = np.argsort(owners, kind="stable")
    examples = order[together]
    width = len(str(users - 1))
    columns = {
        name: np.asarray(column)[examples] if isinstance(column, np.ndarray) else column.take(examples)
        for name, column in population.columns.items()
    }
    return replace(
        population,
        labels=population.labels.take(examples),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=users))]).astype(np.int64),
        user_ids=np.arange(users),
        image_indices=population.image_indices[examples],
        columns=columns | {"split": split[together]},
        user_names=np.array([f"{user:0{width}d}" for user in range(users)]),
    )
