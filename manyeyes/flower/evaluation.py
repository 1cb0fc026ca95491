"""Evaluation by the clients: each counts the correct predictions of the model on its own test images."""

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from flwr.app import Message, MessageType
from torch import Tensor

from manyeyes.core.population import Ints, Population
from manyeyes.core.state import ClientStates
from manyeyes.engines.base import SINGLE_PROCESS
from manyeyes.flower.engine import MAX_LOSS, GridEngine
from manyeyes.flower.members import Member
from manyeyes.flower.messages import InvalidReply, from_record, parse_config, send_tasks, to_record
from manyeyes.flower.protection import max_counted, max_counted_loss
from manyeyes.metrics import Accuracy, Score

REPLY_TYPES = {"client_id": int, "loss": float}
NO_ROUND = -1  # of a task that only evaluates


class GridEvaluator:
    """Scores from the connected clients; clients with an invalid reply are named and do not count.

    A client that reports many test images counts for a bounded share of an evaluation, as of a round.
    """

    dist = SINGLE_PROCESS

    def __init__(self, engine: GridEngine, population: Population) -> None:
        self.engine, self.population = engine, population  # the population has the numbers of test images

    def evaluate_global(self, weights: Tensor) -> Score:
        return self.evaluate_personal_layers(weights, weights, {})

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Return the score of the shared model with each client's own layers, which the clients insert themselves."""
        record, registry = to_record({"weights": weights}), self.engine.registry
        nodes, members = registry.connected(), registry.members.by_id
        asked = {nodes[id]: members[id] for id in self.population.user_ids.tolist() if id in nodes}
        tasks = {node: self.engine.make_task(record, NO_ROUND, m.client_id, clients) for node, m in asked.items()}
        limit = max_counted([member.num_test_examples for member in asked.values()] or [1], registry.config)
        scores, timeout = list[Accuracy](), registry.config.reply_timeout
        for node, message in send_tasks(registry.grid, tasks, MessageType.EVALUATE, timeout, "evaluation"):
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                scores.append(self._read_reply(message, asked[node], limit))
            except InvalidReply as reason:
                print(f"evaluation: {asked[node].name} is rejected: {reason}", file=sys.stderr, flush=True)
        max_loss = max_counted_loss([score.mean_loss for score in scores])
        bounded = (replace(score, loss_sum=min(score.loss_sum, max_loss * score.num_examples)) for score in scores)
        return sum(bounded, Accuracy.empty(len(self.population.classes)))

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> NoReturn:
        raise NotImplementedError("the server of a federation sends no client a model of its own")

    def outputs(self, weights: Tensor, examples: Ints) -> None:
        """Return nothing: the images stay with the clients."""

    def _read_reply(self, message: Message, member: Member, limit: int) -> Accuracy:
        """Return the score of a reply, which counts as one of at most `limit` images."""
        values, num_examples = parse_config(message.content, REPLY_TYPES), member.num_test_examples
        specs = dict.fromkeys(("correct", "count"), (torch.int64, (len(self.population.classes),)))
        counts = from_record(message.content.get("counts"), specs)
        correct_C, count_C = counts["correct"].numpy(), counts["count"].numpy()
        are_counts = bool(((correct_C >= 0) & (correct_C <= count_C) & (count_C <= num_examples)).all())
        if values["client_id"] != member.client_id or not are_counts or count_C.sum() != num_examples:
            raise InvalidReply(f"its counts do not add up to its {num_examples} test images")
        if not (math.isfinite(values["loss"]) and 0 <= values["loss"] <= MAX_LOSS * num_examples):
            raise InvalidReply("its loss is out of range")
        if num_examples > limit:
            correct_C, count_C = (
                np.rint(counts * (limit / num_examples)).astype(np.int64) for counts in (correct_C, count_C)
            )
            values["loss"] *= limit / num_examples
        ids_U, correct_U, count_U = (np.array([n]) for n in (member.client_id, correct_C.sum(), count_C.sum()))
        return Accuracy(correct_C, count_C, values["loss"], ids_U, correct_U, count_U)
