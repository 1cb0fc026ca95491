"""Evaluation: a whole split through the model, into metrics that merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from manyeyes.algorithm import Clients, Diverged
from manyeyes.data.augment import Augment
from manyeyes.engine.batch import fetch, losses
from manyeyes.metrics import Accuracy, MultiLabelScores
from manyeyes.models.flat import FlatModel
from manyeyes.population import Ints, Population

Score = Accuracy | MultiLabelScores


class Evaluator:
    """Scores of a model on one population; nothing that is evaluated changes any state."""

    def __init__(
        self, model: FlatModel, population: Population, augment: Augment, device: torch.device, batch: int = 256
    ) -> None:
        self.model, self.population, self.augment, self.device, self.batch = model, population, augment, device, batch

    def shared(self, weights: Tensor) -> Score:
        """The shared model on every example."""
        return self._total(self._parts(weights, np.arange(len(self.population))))

    def personal(self, weights: Tensor, mask: Tensor, clients: Clients) -> Score:
        """Every client's own model: on its own examples here or, where no client has any, on all of them."""
        mine = {int(key): user for user, key in enumerate(self.population.users) if int(key) in clients}
        everything = np.arange(len(self.population))
        parts = (
            self._parts(
                _with_own(weights, mask, clients[key]), self.population.examples(mine[key]) if mine else everything
            )
            for key in (mine or sorted(clients))
        )
        return self._total(part for some in parts for part in some)

    def _total(self, parts: Iterable[Score]) -> Score:
        empty: Any = (MultiLabelScores if self.population.labels.multi else Accuracy).empty(
            len(self.population.classes)
        )
        return cast(Score, sum(parts, empty))

    @torch.no_grad()
    def _parts(self, weights: Tensor, examples: Ints) -> Iterator[Score]:
        """The score of one batch after another."""
        self.model.module.eval()
        theta, statistics = weights[: self.model.trained], weights[self.model.trained :]
        for first in range(0, len(examples), self.batch):
            chosen = examples[first : first + self.batch]
            images, targets = fetch(self.population, chosen, self.device)
            outputs = self.model(theta, statistics, self.augment.evaluate(images)).float()
            if not bool(torch.isfinite(outputs).all()):
                raise Diverged("the model's outputs are no longer finite")
            users = self.population.users[self.population.owners(chosen)]
            if self.population.labels.multi:
                yield MultiLabelScores.of(outputs, targets, users)
            else:
                yield Accuracy.of(outputs, targets, users, losses(outputs, targets))


def _with_own(weights: Tensor, mask: Tensor, own: dict[str, Tensor]) -> Tensor:
    mine = weights.clone()
    mine[mask] = own["personal"]
    return mine
