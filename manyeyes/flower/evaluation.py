"""Evaluation by the clients: each counts the correct predictions of the model on its own test images."""

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
from manyeyes.engines.base import DistInfo
from manyeyes.engines.evaluation import Score
from manyeyes.flower.engine import MAX_LOSS, GridEngine
from manyeyes.flower.messaging import send_and_receive
from manyeyes.flower.wire import InvalidReply, from_record, parse_config, to_record
from manyeyes.metrics import Accuracy

REPLY_TYPES = {"client_id": int, "loss": float}
NO_ROUND = -1  # of a task that only evaluates


class GridEvaluator:
    """Scores from the connected clients; clients with an invalid reply are named and do not count."""

    dist = DistInfo()

    def __init__(self, engine: GridEngine, population: Population) -> None:
        self.engine, self.population = engine, population  # the population has the numbers of test images
        self._users = {client_id: user for user, client_id in enumerate(population.user_ids.tolist())}

    def evaluate_global(self, weights: Tensor) -> Score:
        """Return the score of the shared model."""
        return self.evaluate_personal_layers(weights, weights, {})

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Return the score of the shared model with each client's own layers, which the clients insert themselves."""
        engine, record = self.engine, to_record({"weights": weights})
        nodes = engine.registry.connected()
        client_ids = {nodes[client_id]: client_id for client_id in self._users if client_id in nodes}
        tasks = {node: engine.make_task(record, NO_ROUND, id, clients) for node, id in client_ids.items()}
        score = Accuracy.empty(len(self.population.classes))
        timeout = engine.config.reply_timeout
        replies = send_and_receive(engine.grid, tasks, MessageType.EVALUATE, timeout, "evaluation", engine.sleep)
        for node, message in replies:
            client_id = client_ids[node]
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                score += self._read_reply(message, client_id)
            except InvalidReply as reason:
                name = self.population.user_name(self._users[client_id])
                print(f"evaluation: {name} is rejected: {reason}", file=sys.stderr, flush=True)
        return score

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> NoReturn:
        raise NotImplementedError("the server of a federation sends no client a model of its own")

    def _read_reply(self, message: Message, client_id: int) -> Accuracy:
        values, num_classes = parse_config(message.content, REPLY_TYPES), len(self.population.classes)
        specs = dict.fromkeys(("correct", "count"), (torch.int64, (num_classes,)))
        counts = {name: t.numpy() for name, t in from_record(message.content.get("counts"), specs).items()}
        num_examples = int(self.population.num_examples[self._users[client_id]])
        correct_C, count_C = counts["correct"], counts["count"]
        are_counts = bool(((correct_C >= 0) & (correct_C <= count_C) & (count_C <= num_examples)).all())
        if values["client_id"] != client_id or not are_counts or count_C.sum() != num_examples:
            raise InvalidReply(f"its counts do not add up to its {num_examples} test images")
        if not (math.isfinite(values["loss"]) and 0 <= values["loss"] <= MAX_LOSS * num_examples):
            raise InvalidReply("its loss is out of range")
        user_ids = np.array([client_id])
        return Accuracy(
            correct_C, count_C, values["loss"], user_ids, np.array([correct_C.sum()]), np.array([count_C.sum()])
        )
