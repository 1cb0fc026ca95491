"""The grid as an engine: a plan goes out to the clients, and what they answer is checked and summed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from manyeyes.engine.distributed import Lost
from manyeyes.engine.reference import Reference
from manyeyes.engine.sending import unpack
from manyeyes.federation.asking import ask
from manyeyes.federation.roll import Roll
from manyeyes.federation.rules import Rules
from manyeyes.federation.wire import Like, Refused, about, from_record, like, to_record
from manyeyes.parts.length import lengths
from manyeyes.population import Population
from manyeyes.work import Aggregate, Client, Clients, Personal, Plan, Work

ANSWER = {"round": int, "key": int, "examples": int, "loss": float, "norm": float}
MOST_LOSS = 1e6  # of an answer that is believed
ROUND = "round"  # under which the server keeps which round of a client it used last; the client keeps the rest


@dataclass(frozen=True, eq=False)
class Answer:
    """A good one."""

    update_W: Tensor
    report_P: Tensor | None
    loss: float
    norm: float


class GridEngine:
    """Every client of a plan trains where it is."""

    dice = 0  # clients throw their own

    def __init__(
        self,
        grid: Grid,
        roll: Roll,
        rules: Rules,
        reference: Reference,
        population: Population,
        run: str,
        target: tuple[float, ...] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.roll, self.rules, self.run, self.target = grid, roll, rules, run, target
        self.reference, self.trained, self.sleep = reference, reference.trained, sleep
        self.sizes = dict(zip(population.users.tolist(), population.sizes.tolist(), strict=True))

    def personal(self, personal: Personal) -> Tensor:
        return self.reference.personal(personal)

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate:
        """The sum of the good answers; too few of them, and the missing clients are asked again."""
        sums, began = Sums(weights, plan, work, self.trained), time.monotonic()
        arrays = {"weights": weights} | ({} if work.shared is None else {"correction": work.shared})
        record, expected = to_record(arrays), self._expected(weights, work)
        least, why = min(self.rules.least_clients, len(plan.clients)), {}
        for attempt in range(self.rules.repeats + 1):
            if attempt:
                self.sleep(self.rules.pause)
            missing = [client for client in plan.clients if not sums.has(client.key)]
            why = dict(self._ask(record, expected, plan, work, missing, clients, sums))
            if len(plan.clients) - len(why) >= least:
                break
            print(f"round {plan.round + 1}: {_listed(why)}", file=sys.stderr, flush=True)
        good = len(plan.clients) - len(why)
        if good < least:
            raise Lost(
                f"round {plan.round + 1} had {good} good answers and needs {least}, though it was repeated "
                f"{self.rules.repeats} times ({_listed(why)})"
            )
        seconds = time.monotonic() - began
        print(f"round {plan.round + 1}: {good} of {len(plan.clients)} clients in {seconds:.1f} s", flush=True)
        return sums.aggregate(why)

    def task(self, record: ArrayRecord, round: int, key: int, clients: Clients, **words: Any) -> RecordDict:
        """What a client is told: the arrays, the round, who it is, and which of its rounds was used last."""
        kept = clients.get(key)
        told: dict[str, Any] = {
            "round": round,
            "key": key,
            "run": self.run,
            "kept": -1 if not kept else int(kept[ROUND]),
        }
        return RecordDict({"arrays": record, "about": ConfigRecord(told | words)})

    def _ask(
        self,
        record: ArrayRecord,
        expected: Like,
        plan: Plan,
        work: Work,
        asked: list[Client],
        clients: Clients,
        sums: Sums,
    ) -> Mapping[int, str]:
        """Ask these clients, sum the good answers, and say of the others what was wrong."""
        nodes = self.roll.present()
        why = {client.key: f"{self._name(client)} is not connected" for client in asked if client.key not in nodes}
        words = {"bound": work.bound, "target": list(self.target)}
        tasks = {nodes[c.key]: self.task(record, plan.round, c.key, clients, **words) for c in asked if c.key in nodes}
        by_node = {nodes[client.key]: client for client in asked if client.key in nodes}
        kind, group = MessageType.TRAIN, str(plan.round + 1)
        for node, message in ask(self.grid, tasks, kind, self.rules.timeout, group, self.sleep):
            client = by_node[node]
            try:
                if isinstance(message, str):
                    raise Refused(message)
                sums.add(client.key, self._read(message, plan, work, client, expected, sums.weights))
            except Refused as reason:
                why[client.key] = f"{self._name(client)} is left out: {reason}"
        return why

    def _read(
        self, message: Message, plan: Plan, work: Work, client: Client, expected: Like, weights: Tensor
    ) -> Answer:
        """A client's answer, if it is what was asked for."""
        said = about(message.content, ANSWER)
        if (said["round"], said["key"]) != (plan.round, client.key):
            raise Refused(f"it sent an update of round {said['round'] + 1} as client {said['key']}")
        if said["examples"] != self.sizes[client.key]:
            raise Refused(f"it says that it holds {said['examples']} photos, and it held {self.sizes[client.key]}")
        if not (0 <= said["loss"] <= MOST_LOSS and 0 <= said["norm"] < math.inf):
            raise Refused("its loss or the length of its update is no sensible number")
        arrays = from_record(message.content.get("update"), expected, weights.device)
        try:
            update = unpack(arrays, len(weights), work)
        except (IndexError, RuntimeError, ValueError) as error:
            raise Refused("its update cannot be unpacked") from error
        report = None
        if work.correct is not None and work.correct.reports:
            wanted = {"report": (torch.float32, (self.trained,))}
            report = from_record(message.content.get("report"), wanted, weights.device)["report"]
        for vector in (update, report):
            length = 0.0 if vector is None else float(lengths(vector))
            if not math.isfinite(length):
                raise Refused("it sent numbers that are not finite")
            if length > self.rules.most_length:
                raise Refused(
                    f"it sent an update of length {length:.3g}, and most_length is {self.rules.most_length:g}"
                )
        norm = said["norm"] if math.isfinite(work.bound) else float(lengths(update))
        return Answer(update, report, said["loss"], min(norm, self.rules.most_length))

    def _expected(self, weights: Tensor, work: Work) -> Like:
        """Types and shapes of a packed update."""
        shared = len(weights) if work.personal is None else int((~work.personal).sum())
        zeros = torch.zeros(shared)
        if work.compress is None or not shared:
            return like({"values": zeros})
        return like(work.compress.encode(zeros, np.random.default_rng(0)))

    def _name(self, client: Client) -> str:
        assert self.roll.members is not None, "the members have not been called yet"
        return next(m.name for m in self.roll.members.all if m.key == client.key)


class Sums:
    """Answers, summed as they come: in float64, so that their order does not show."""

    def __init__(self, weights: Tensor, plan: Plan, work: Work, trained: int) -> None:
        self.weights, self.plan, self.work = weights, plan, work
        self._place = {client.key: place for place, client in enumerate(plan.clients)}
        self._total = torch.zeros_like(weights, dtype=torch.float64)
        self._reports: Tensor | None = None
        self._kept = np.zeros(len(plan.clients), bool)
        self._loss, self._norm = np.full(len(plan.clients), math.nan), np.full(len(plan.clients), math.nan)
        self._apart = weights.new_zeros(len(plan.clients), len(weights)) if work.apart else None

    def has(self, key: int) -> bool:
        return bool(self._kept[self._place[key]])

    def add(self, key: int, answer: Answer) -> None:
        place = self._place[key]
        self._kept[place], self._loss[place], self._norm[place] = True, answer.loss, answer.norm
        self._total += self.plan.clients[place].weight * answer.update_W.double()
        if answer.report_P is not None:
            report = answer.report_P.double()
            self._reports = report if self._reports is None else self._reports + report
        if self._apart is not None:
            self._apart[place] = answer.update_W

    def aggregate(self, why: Mapping[int, str]) -> Aggregate:
        round = torch.tensor(self.plan.round)
        keeps = {c.key: {ROUND: round.clone()} for c in self.plan.clients if self._remembers and self.has(c.key)}
        reports = None if self._reports is None else self._reports.float()
        return Aggregate(self._total.float(), reports, self._kept, self._loss, self._norm, keeps, self._apart, why)

    @property
    def _remembers(self) -> bool:
        """Whether clients keep something for their next round."""
        work = self.work
        owes = work.compress is not None and work.compress.feedback
        return work.personal is not None or work.correct is not None or work.local.keep or owes


def _listed(why: Mapping[int, str]) -> str:
    return "; ".join(why.values())
