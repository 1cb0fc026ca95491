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

from manyeyes.core.population import Population
from manyeyes.core.state import ClientStates
from manyeyes.engines.distributed import DistInfo
from manyeyes.engines.evaluation import Score
from manyeyes.flower.engine import MOST_LOSS, GridEngine
from manyeyes.flower.messaging import send_and_receive
from manyeyes.flower.wire import InvalidReply, from_record, parse_config, to_record
from manyeyes.metrics import Accuracy

ANSWER = {"key": int, "loss": float}


class GridEvaluator:
    """Scores of the clients that are connected and answer well; who does not is named, and counts for nothing."""

    dist = DistInfo()

    def __init__(self, engine: GridEngine, population: Population) -> None:
        self.engine, self.population = engine, population  # how much each client holds to be tested on

    def evaluate_global(self, weights: Tensor) -> Score:
        return self.evaluate_personal_layers(weights, weights, {})

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Every client with the layers that it keeps; the mask is its own to know."""
        engine, record = self.engine, to_record({"weights": weights})
        nodes = engine.roll.connected()
        keys = {nodes[key]: key for key in self.population.user_ids.tolist() if key in nodes}
        tasks = {node: engine.task(record, -1, key, clients) for node, key in keys.items()}
        total = Accuracy.empty(len(self.population.classes))
        answers = send_and_receive(
            engine.grid, tasks, MessageType.EVALUATE, engine.rules.timeout, "evaluation", engine.sleep
        )
        for node, message in answers:
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                total += self._read(message, keys[node])
            except InvalidReply as reason:
                name = self.population.user_name(self.population.user_ids.tolist().index(keys[node]))
                print(f"evaluation: {name} is left out: {reason}", file=sys.stderr, flush=True)
        return total

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> NoReturn:
        raise NotImplementedError("clients of a federation are not sent models of their own")

    def _read(self, message: Message, key: int) -> Accuracy:
        said, classes = parse_config(message.content, ANSWER), len(self.population.classes)
        wanted = dict.fromkeys(("correct", "count"), (torch.int64, (classes,)))
        counts = {name: t.numpy() for name, t in from_record(message.content.get("counts"), wanted).items()}
        held = int(self.population.num_examples[self.population.user_ids.tolist().index(key)])
        correct, count = counts["correct"], counts["count"]
        if (
            said["key"] != key
            or not ((correct >= 0) & (correct <= count) & (count <= held)).all()
            or count.sum() != held
        ):
            raise InvalidReply(f"its counts are not those of the {held} photos that it held")
        if not (math.isfinite(said["loss"]) and 0 <= said["loss"] <= MOST_LOSS * held):
            raise InvalidReply("its loss is no sensible number")
        users = np.array([key])
        return Accuracy(correct, count, said["loss"], users, np.array([correct.sum()]), np.array([count.sum()]))
