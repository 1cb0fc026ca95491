"""Evaluation where the photos are: every client counts what the model gets right on its own test part."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
import torch
from flwr.app import Message, MessageType
from torch import Tensor

from manyeyes.engine.distributed import World
from manyeyes.engine.evaluation import Score
from manyeyes.federation.asking import ask
from manyeyes.federation.engine import MOST_LOSS, GridEngine
from manyeyes.federation.wire import Refused, about, from_record, to_record
from manyeyes.metrics import Accuracy
from manyeyes.population import Population
from manyeyes.work import Clients

ANSWER = {"key": int, "loss": float}


class GridEvaluator:
    """Scores of the clients that are connected and answer well; who does not is named, and counts for nothing."""

    here = World()

    def __init__(self, engine: GridEngine, population: Population) -> None:
        self.engine, self.population = engine, population  # how much each client holds to be tested on

    def shared(self, weights: Tensor) -> Score:
        return self.personal(weights, weights, {})

    def personal(self, weights: Tensor, mask: Tensor, clients: Clients) -> Score:
        """Every client with the layers that it keeps; the mask is its own to know."""
        engine, record = self.engine, to_record({"weights": weights})
        nodes = engine.roll.present()
        keys = {nodes[key]: key for key in self.population.users.tolist() if key in nodes}
        tasks = {node: engine.task(record, -1, key, clients) for node, key in keys.items()}
        total = Accuracy.empty(len(self.population.classes))
        answers = ask(engine.grid, tasks, MessageType.EVALUATE, engine.rules.timeout, "evaluation", engine.sleep)
        for node, message in answers:
            try:
                if isinstance(message, str):
                    raise Refused(message)
                total += self._read(message, keys[node])
            except Refused as reason:
                name = self.population.name(self.population.users.tolist().index(keys[node]))
                print(f"evaluation: {name} is left out: {reason}", file=sys.stderr, flush=True)
        return total

    def own(self, models: Iterable[tuple[int, Tensor]]) -> NoReturn:
        raise NotImplementedError("clients of a federation are not sent models of their own")

    def _read(self, message: Message, key: int) -> Accuracy:
        said, classes = about(message.content, ANSWER), len(self.population.classes)
        wanted = dict.fromkeys(("correct", "count"), (torch.int64, (classes,)))
        counts = {name: t.numpy() for name, t in from_record(message.content.get("counts"), wanted).items()}
        held = int(self.population.sizes[self.population.users.tolist().index(key)])
        correct, count = counts["correct"], counts["count"]
        if (
            said["key"] != key
            or not ((correct >= 0) & (correct <= count) & (count <= held)).all()
            or count.sum() != held
        ):
            raise Refused(f"its counts are not those of the {held} photos that it held")
        if not (math.isfinite(said["loss"]) and 0 <= said["loss"] <= MOST_LOSS * held):
            raise Refused("its loss is no sensible number")
        users = np.array([key])
        return Accuracy(correct, count, said["loss"], users, np.array([correct.sum()]), np.array([count.sum()]))
