"""The grid engine: sends the plan of a round to the clients, checks their replies and adds their updates up."""

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
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext
from manyeyes.engines.base import EngineBase
from manyeyes.engines.client_step import decompress
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.flower.config import FederationConfig
from manyeyes.flower.messaging import send_and_receive
from manyeyes.flower.registry import ClientRegistry
from manyeyes.flower.wire import CONFIG, InvalidReply, TensorSpecs, from_record, parse_config, tensor_specs, to_record

REPLY_TYPES = {"round": int, "client_id": int, "num_examples": int, "loss": float, "norm": float}
MAX_LOSS = 1e6  # of a reply that is accepted
LAST_ROUND = "round"  # key under which the server stores which round of a client it used last


@dataclass(frozen=True, eq=False)
class ClientReply:
    """A client's valid reply to a training task."""

    update_W: Tensor
    upload_P: Tensor | None
    loss: float
    norm: float


class GridEngine(EngineBase):
    """An engine whose clients train where their data is."""

    name = "grid"
    num_augment_uniforms = 0  # clients draw their own

    def __init__(
        self,
        grid: Grid,
        registry: ClientRegistry,
        config: FederationConfig,
        reference: ReferenceEngine,
        population: Population,
        run_id: str,
        target_distribution: tuple[float, ...] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.registry, self.config, self.run_id = grid, registry, config, run_id
        self.reference, self.num_trainable, self.sleep = reference, reference.num_trainable, sleep
        self.target_distribution = target_distribution
        self._num_examples = dict(zip(population.user_ids.tolist(), population.num_examples.tolist(), strict=True))

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        """Return where the weights belong to personal layers [W]."""
        return self.reference.personal_mask(personal_layers)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Return the sum of the valid updates; if too few arrive, the missing clients are asked again."""
        start = time.monotonic()
        accumulator = UpdateAccumulator(weights, plan, context)
        tensors = {"weights": weights}
        if context.correction_state is not None:
            tensors["correction"] = context.correction_state
        record = to_record(tensors)
        min_clients = min(self.config.min_clients, len(plan.clients))
        rejections: dict[int, str] = {}
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                self.sleep(self.config.retry_delay)
            rejections = self._ask_missing(record, plan, context, client_states, accumulator)
            num_valid = len(plan.clients) - len(rejections)
            if num_valid >= min_clients:
                break
            print(f"round {plan.round + 1}: {'; '.join(rejections.values())}", file=sys.stderr, flush=True)
        if num_valid < min_clients:
            raise PeerLostError(
                f"round {plan.round + 1} has {num_valid} valid replies and needs {min_clients}, after "
                f"{self.config.max_retries} retries ({'; '.join(rejections.values())})"
            )
        seconds = time.monotonic() - start
        print(f"round {plan.round + 1}: {num_valid} of {len(plan.clients)} clients in {seconds:.1f} s", flush=True)
        return accumulator.result(rejections)

    def make_task(
        self, record: ArrayRecord, round: int, client_id: int, client_states: ClientStates, **values: Any
    ) -> RecordDict:
        """Return what a client is sent: tensors, the round, its id, and which of its rounds was used last."""
        client_state = client_states.get(client_id)
        last_round = int(client_state[LAST_ROUND]) if client_state else -1
        values |= {"round": round, "client_id": client_id, "run": self.run_id, "last_round": last_round}
        return RecordDict({"arrays": record, CONFIG: ConfigRecord(values)})

    def _ask_missing(
        self,
        record: ArrayRecord,
        plan: RoundPlan,
        context: RoundContext,
        client_states: ClientStates,
        accumulator: UpdateAccumulator,
    ) -> dict[int, str]:
        """Add up the updates of the clients that are missing so far; return why clients are still missing."""
        nodes = self.registry.connected()
        missing = [client for client in plan.clients if not accumulator.has(client.client_id)]
        connected = {nodes[client.client_id]: client for client in missing if client.client_id in nodes}
        rejections = {
            client.client_id: f"{self._name(client)} is not connected"
            for client in missing
            if client.client_id not in nodes
        }
        values = {"clipping_norm": context.clipping_norm, "target_distribution": list(self.target_distribution)}
        tasks = {
            node: self.make_task(record, plan.round, client.client_id, client_states, **values)
            for node, client in connected.items()
        }
        update_specs = _update_specs(accumulator.weights, context)
        group, timeout = str(plan.round + 1), self.config.reply_timeout
        for node, message in send_and_receive(self.grid, tasks, MessageType.TRAIN, timeout, group, self.sleep):
            client = connected[node]
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                accumulator.add(client.client_id, self._read_reply(message, plan, context, client, update_specs))
            except InvalidReply as reason:
                rejections[client.client_id] = f"{self._name(client)} is rejected: {reason}"
        return rejections

    def _read_reply(
        self, message: Message, plan: RoundPlan, context: RoundContext, client: ClientPlan, update_specs: TensorSpecs
    ) -> ClientReply:
        values = parse_config(message.content, REPLY_TYPES)
        num_examples = self._num_examples[client.client_id]
        if (values["round"], values["client_id"]) != (plan.round, client.client_id):
            raise InvalidReply(f"it sent an update of round {values['round'] + 1} as client {values['client_id']}")
        if values["num_examples"] != num_examples:
            raise InvalidReply(f"it reports {values['num_examples']} images, and reported {num_examples} before")
        if not (0 <= values["loss"] <= MAX_LOSS and 0 <= values["norm"] < math.inf):
            raise InvalidReply("its loss or the norm of its update is out of range")
        update, upload = self._read_tensors(message, context, update_specs)
        max_norm = self.config.max_update_norm
        for vector in (update, upload):
            norm = 0.0 if vector is None else float(l2_norms(vector))
            if not math.isfinite(norm):
                raise InvalidReply("its update is not finite")
            if norm > max_norm:
                raise InvalidReply(f"its update has norm {norm:.3g}, and max_update_norm is {max_norm:g}")
        norm = values["norm"] if math.isfinite(context.clipping_norm) else float(l2_norms(update))
        return ClientReply(update, upload, values["loss"], min(norm, max_norm))

    def _read_tensors(
        self, message: Message, context: RoundContext, update_specs: TensorSpecs
    ) -> tuple[Tensor, Tensor | None]:
        """Return the client's update [W], decompressed, and what its correction uploads [P]."""
        device = self.reference.device
        arrays = from_record(message.content.get("update"), update_specs, device)
        try:
            update = decompress(arrays, self.reference.model.num_shared, context)
        except (IndexError, RuntimeError, ValueError) as error:
            raise InvalidReply("its update cannot be decompressed") from error
        if context.correction is None or not context.correction.uploads:
            return update, None
        upload_specs = {"upload": (torch.float32, (self.num_trainable,))}
        return update, from_record(message.content.get("upload"), upload_specs, device)["upload"]

    def _name(self, client: ClientPlan) -> str:
        return self.registry.members.name_of(client.client_id)


class UpdateAccumulator:
    """The sum of the updates in float64, so that the result does not depend on the order in which they arrive."""

    def __init__(self, weights: Tensor, plan: RoundPlan, context: RoundContext) -> None:
        self.weights, self.plan, self.context = weights, plan, context
        self._indices = {client.client_id: index for index, client in enumerate(plan.clients)}
        self._update_W = torch.zeros_like(weights, dtype=torch.float64)
        self._uploads_P: Tensor | None = None
        num_clients = len(plan.clients)
        self._accepted_K = np.zeros(num_clients, bool)
        self._loss_K, self._norm_K = np.full(num_clients, math.nan), np.full(num_clients, math.nan)
        self._updates_KW = weights.new_zeros(num_clients, len(weights)) if context.keep_client_updates else None

    def has(self, client_id: int) -> bool:
        """Return whether a valid reply of the client has been added."""
        return bool(self._accepted_K[self._indices[client_id]])

    def add(self, client_id: int, reply: ClientReply) -> None:
        index = self._indices[client_id]
        self._accepted_K[index], self._loss_K[index], self._norm_K[index] = True, reply.loss, reply.norm
        self._update_W += self.plan.clients[index].weight * reply.update_W.double()
        if reply.upload_P is not None:
            upload = reply.upload_P.double()
            self._uploads_P = upload if self._uploads_P is None else self._uploads_P + upload
        if self._updates_KW is not None:
            self._updates_KW[index] = reply.update_W

    def result(self, rejection_reasons: Mapping[int, str]) -> CohortResult:
        """Return the result of the round; the server stores of each client only which round it used last."""
        client_states: dict[int, ClientState] = {}
        if _clients_keep_state(self.context):
            accepted = [client.client_id for client in self.plan.clients if self.has(client.client_id)]
            client_states = {client_id: {LAST_ROUND: torch.tensor(self.plan.round)} for client_id in accepted}
        return CohortResult(
            update_W=self._update_W.float(),
            uploads_P=None if self._uploads_P is None else self._uploads_P.float(),
            accepted_K=self._accepted_K,
            loss_K=self._loss_K,
            norm_K=self._norm_K,
            client_states=client_states,
            updates_KW=self._updates_KW,
            rejection_reasons=rejection_reasons,
        )


def _update_specs(weights: Tensor, context: RoundContext) -> TensorSpecs:
    """Return the types and shapes of a compressed update."""
    num_shared = len(weights) if context.personal_mask is None else int((~context.personal_mask).sum())
    zeros = torch.zeros(num_shared)
    if context.compressor is None or not num_shared:
        return tensor_specs({"values": zeros})
    return tensor_specs(context.compressor.encode(zeros, np.random.default_rng(0)))


def _clients_keep_state(context: RoundContext) -> bool:
    """Return whether clients store something for their next round."""
    has_residual = context.compressor is not None and context.compressor.error_feedback
    has_other_state = context.personal_mask is not None or context.correction is not None
    return has_residual or has_other_state or context.client_optimizer.persist_state
