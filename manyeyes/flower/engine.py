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

from manyeyes.components.numerics import l2_norms
from manyeyes.core.algorithm import PersonalLayers
from manyeyes.core.engine import CohortResult, RoundContext
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.state import ClientStates
from manyeyes.engines.distributed import PeerLostError
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.uplink import decompress
from manyeyes.flower.config import FederationConfig
from manyeyes.flower.messaging import send_and_receive
from manyeyes.flower.registry import ClientRegistry
from manyeyes.flower.wire import InvalidReply, TensorSpecs, from_record, parse_config, tensor_specs, to_record

ANSWER = {"round": int, "key": int, "examples": int, "loss": float, "norm": float}
MOST_LOSS = 1e6  # of an answer that is believed
ROUND = "round"  # under which the server keeps which round of a client it used last; the client keeps the rest


@dataclass(frozen=True, eq=False)
class ClientReply:
    """A good one."""

    update_W: Tensor
    report_P: Tensor | None
    loss: float
    norm: float


class GridEngine:
    """Every client of a plan trains where it is."""

    num_augment_uniforms = 0  # clients throw their own

    def __init__(
        self,
        grid: Grid,
        roll: ClientRegistry,
        rules: FederationConfig,
        reference: ReferenceEngine,
        population: Population,
        run: str,
        target: tuple[float, ...] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.roll, self.rules, self.run, self.target = grid, roll, rules, run, target
        self.reference, self.num_trainable, self.sleep = reference, reference.num_trainable, sleep
        self.sizes = dict(zip(population.user_ids.tolist(), population.num_examples.tolist(), strict=True))

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self.reference.personal_mask(personal_layers)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """The sum of the good answers; too few of them, and the missing clients are asked again."""
        sums, began = UpdateAccumulator(weights, plan, context, self.num_trainable), time.monotonic()
        arrays = {"weights": weights} | (
            {} if context.correction_state is None else {"correction": context.correction_state}
        )
        record, expected = to_record(arrays), self._expected(weights, context)
        least, why = min(self.rules.min_clients, len(plan.clients)), {}
        for attempt in range(self.rules.max_retries + 1):
            if attempt:
                self.sleep(self.rules.retry_delay)
            missing = [client for client in plan.clients if not sums.has(client.client_id)]
            why = dict(self._ask(record, expected, plan, context, missing, client_states, sums))
            if len(plan.clients) - len(why) >= least:
                break
            print(f"round {plan.round + 1}: {_listed(why)}", file=sys.stderr, flush=True)
        good = len(plan.clients) - len(why)
        if good < least:
            raise PeerLostError(
                f"round {plan.round + 1} had {good} good answers and needs {least}, though it was repeated "
                f"{self.rules.max_retries} times ({_listed(why)})"
            )
        seconds = time.monotonic() - began
        print(f"round {plan.round + 1}: {good} of {len(plan.clients)} clients in {seconds:.1f} s", flush=True)
        return sums.aggregate(why)

    def task(self, record: ArrayRecord, round: int, key: int, clients: ClientStates, **words: Any) -> RecordDict:
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
        expected: TensorSpecs,
        plan: RoundPlan,
        work: RoundContext,
        asked: list[ClientPlan],
        clients: ClientStates,
        sums: UpdateAccumulator,
    ) -> Mapping[int, str]:
        """Ask these clients, sum the good answers, and say of the others what was wrong."""
        nodes = self.roll.connected()
        why = {
            client.client_id: f"{self._name(client)} is not connected"
            for client in asked
            if client.client_id not in nodes
        }
        words = {"bound": work.clipping_norm, "target": list(self.target)}
        tasks = {
            nodes[c.client_id]: self.task(record, plan.round, c.client_id, clients, **words)
            for c in asked
            if c.client_id in nodes
        }
        by_node = {nodes[client.client_id]: client for client in asked if client.client_id in nodes}
        kind, group = MessageType.TRAIN, str(plan.round + 1)
        for node, message in send_and_receive(self.grid, tasks, kind, self.rules.timeout, group, self.sleep):
            client = by_node[node]
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                sums.add(client.client_id, self._read(message, plan, work, client, expected, sums.weights))
            except InvalidReply as reason:
                why[client.client_id] = f"{self._name(client)} is left out: {reason}"
        return why

    def _read(
        self,
        message: Message,
        plan: RoundPlan,
        work: RoundContext,
        client: ClientPlan,
        expected: TensorSpecs,
        weights: Tensor,
    ) -> ClientReply:
        """A client's answer, if it is what was asked for."""
        said = parse_config(message.content, ANSWER)
        if (said["round"], said["key"]) != (plan.round, client.client_id):
            raise InvalidReply(f"it sent an update of round {said['round'] + 1} as client {said['key']}")
        if said["examples"] != self.sizes[client.client_id]:
            raise InvalidReply(
                f"it says that it holds {said['examples']} photos, and it held {self.sizes[client.client_id]}"
            )
        if not (0 <= said["loss"] <= MOST_LOSS and 0 <= said["norm"] < math.inf):
            raise InvalidReply("its loss or the length of its update is no sensible number")
        arrays = from_record(message.content.get("update"), expected, weights.device)
        try:
            update = decompress(arrays, len(weights), work)
        except (IndexError, RuntimeError, ValueError) as error:
            raise InvalidReply("its update cannot be unpacked") from error
        report = None
        if work.correction is not None and work.correction.uploads:
            wanted = {"report": (torch.float32, (self.num_trainable,))}
            report = from_record(message.content.get("report"), wanted, weights.device)["report"]
        for vector in (update, report):
            length = 0.0 if vector is None else float(l2_norms(vector))
            if not math.isfinite(length):
                raise InvalidReply("it sent numbers that are not finite")
            if length > self.rules.max_update_norm:
                raise InvalidReply(
                    f"it sent an update of length {length:.3g}, and most_length is {self.rules.max_update_norm:g}"
                )
        norm = said["norm"] if math.isfinite(work.clipping_norm) else float(l2_norms(update))
        return ClientReply(update, report, said["loss"], min(norm, self.rules.max_update_norm))

    def _expected(self, weights: Tensor, work: RoundContext) -> TensorSpecs:
        """Types and shapes of a packed update."""
        shared = len(weights) if work.personal_mask is None else int((~work.personal_mask).sum())
        zeros = torch.zeros(shared)
        if work.compressor is None or not shared:
            return tensor_specs({"values": zeros})
        return tensor_specs(work.compressor.encode(zeros, np.random.default_rng(0)))

    def _name(self, client: ClientPlan) -> str:
        assert self.roll.members is not None, "the members have not been called yet"
        return next(m.name for m in self.roll.members.all if m.key == client.client_id)


class UpdateAccumulator:
    """Answers, summed as they come: in float64, so that their order does not show."""

    def __init__(self, weights: Tensor, plan: RoundPlan, work: RoundContext, trained: int) -> None:
        self.weights, self.plan, self.work = weights, plan, work
        self._place = {client.client_id: place for place, client in enumerate(plan.clients)}
        self._total = torch.zeros_like(weights, dtype=torch.float64)
        self._reports: Tensor | None = None
        self._kept = np.zeros(len(plan.clients), bool)
        self._loss, self._norm = np.full(len(plan.clients), math.nan), np.full(len(plan.clients), math.nan)
        self._apart = weights.new_zeros(len(plan.clients), len(weights)) if work.keep_client_updates else None

    def has(self, key: int) -> bool:
        return bool(self._kept[self._place[key]])

    def add(self, key: int, answer: ClientReply) -> None:
        place = self._place[key]
        self._kept[place], self._loss[place], self._norm[place] = True, answer.loss, answer.norm
        self._total += self.plan.clients[place].weight * answer.update_W.double()
        if answer.report_P is not None:
            report = answer.report_P.double()
            self._reports = report if self._reports is None else self._reports + report
        if self._apart is not None:
            self._apart[place] = answer.update_W

    def aggregate(self, why: Mapping[int, str]) -> CohortResult:
        round = torch.tensor(self.plan.round)
        keeps = {
            c.client_id: {ROUND: round.clone()} for c in self.plan.clients if self._remembers and self.has(c.client_id)
        }
        reports = None if self._reports is None else self._reports.float()
        return CohortResult(self._total.float(), reports, self._kept, self._loss, self._norm, keeps, self._apart, why)

    @property
    def _remembers(self) -> bool:
        """Whether clients keep something for their next round."""
        work = self.work
        owes = work.compressor is not None and work.compressor.error_feedback
        return (
            work.personal_mask is not None or work.correction is not None or work.client_optimizer.persist_state or owes
        )


def _listed(why: Mapping[int, str]) -> str:
    return "; ".join(why.values())
