"""The grid engine: sends the plan of a round to the clients, checks their replies and adds their updates up."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext
from manyeyes.core.uplink import decompress, l2_norms
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.flower.messages import CONFIG, InvalidReply, TensorSpecs, from_record, parse_config, send_tasks, to_record
from manyeyes.flower.protection import Bounds, bound_norms, bound_updates, join_reasons, max_counted_loss, shorten
from manyeyes.flower.registry import ClientRegistry

REPLY_TYPES = {"round": int, "client_id": int, "num_examples": int, "loss": float, "norm": float}
MAX_LOSS = 1e6  # of a reply that is accepted
LAST_ROUND = "round"  # key under which the server stores which round of a client it used last


class GridEngine(EngineBase):
    """An engine whose clients train where their data is."""

    name = "grid"

    def __init__(
        self, setup: EngineSetup, registry: ClientRegistry, run_id: str, target_distribution: tuple[float, ...] = ()
    ) -> None:
        super().__init__(setup)
        self.setup, self.registry, self.config, self.run_id = setup, registry, registry.config, run_id
        self.target_distribution = target_distribution
        self.num_augment_uniforms = 0  # clients draw their own
        self._is_variance_W = _variances(setup)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Return the sum of the valid updates; if too few arrive, the missing clients are asked again."""
        start = time.monotonic()
        accumulator = UpdateAccumulator(weights, plan, context, self.registry, self.num_trainable)
        tensors = {"weights": weights}
        if context.correction_state is not None:
            tensors["correction"] = context.correction_state
        record = to_record(tensors)
        min_clients = min(self.config.min_clients, len(plan.clients))
        rejections: dict[int, str] = {}
        for attempt in range(self.config.max_retries + 1):
            if attempt:
                time.sleep(self.config.retry_delay)
            rejections = self._ask_missing(record, client_states, accumulator)
            num_valid, reasons = len(plan.clients) - len(rejections), "; ".join(rejections.values())
            if num_valid >= min_clients:
                break
            print(f"round {plan.round + 1}: {reasons}", file=sys.stderr, flush=True)
        else:
            problem = f"round {plan.round + 1} has {num_valid} valid replies and needs {min_clients}"
            raise PeerLostError(f"{problem}, after {self.config.max_retries} retries ({reasons})")
        result = accumulator.result(rejections)
        clipped = [accumulator.names[client_id] for client_id in result.clipping_reasons]
        counts, seconds = f"{result.accepted_K.sum()} of {len(plan.clients)}", time.monotonic() - start
        text = f"round {plan.round + 1}: {counts} clients in {seconds:.1f} s"
        print(f"{text}, clipped: {shorten(clipped)}" if clipped else text, flush=True)
        return result

    def make_task(
        self, record: ArrayRecord, round: int, client_id: int, client_states: ClientStates, **values: Any
    ) -> RecordDict:
        """Return what a client is sent: tensors, the round, its id, and which of its rounds was used last."""
        client_state = client_states.get(client_id)
        last_round = int(client_state[LAST_ROUND]) if client_state else -1
        values |= {"round": round, "client_id": client_id, "run": self.run_id, "last_round": last_round}
        return RecordDict({"arrays": record, CONFIG: ConfigRecord(values)})

    def _ask_missing(
        self, record: ArrayRecord, client_states: ClientStates, accumulator: UpdateAccumulator
    ) -> dict[int, str]:
        """Add up the updates of the clients that are missing so far; return why clients are still missing."""
        plan, context, nodes = accumulator.plan, accumulator.context, self.registry.connected()
        names = accumulator.names
        missing = {c.client_id: c for c in plan.clients if not accumulator.has(c.client_id)}
        rejections = {id: f"{names[id]} is not connected" for id in missing if id not in nodes}
        asked = {nodes[client_id]: client for client_id, client in missing.items() if client_id in nodes}
        values: dict[str, Any] = {
            "clipping_norm": context.clipping_norm,
            "target_distribution": list(self.target_distribution),
        }
        make_task = partial(self.make_task, record, plan.round, client_states=client_states, **values)
        tasks = {node: make_task(client_id=client.client_id) for node, client in asked.items()}
        update_specs = _update_specs(accumulator.weights, context)
        group, timeout = str(plan.round + 1), self.config.reply_timeout
        for node, message in send_tasks(self.registry.grid, tasks, MessageType.TRAIN, timeout, group):
            client = asked[node]
            try:
                if isinstance(message, str):
                    raise InvalidReply(message)
                self._add_reply(message, client, update_specs, accumulator)
            except InvalidReply as reason:
                rejections[client.client_id] = f"{names[client.client_id]} is rejected: {reason}"
        return rejections

    def _add_reply(
        self, message: Message, client: ClientPlan, update_specs: TensorSpecs, accumulator: UpdateAccumulator
    ) -> None:
        plan, context, values = accumulator.plan, accumulator.context, parse_config(message.content, REPLY_TYPES)
        num_examples = self.registry.members.by_id[client.client_id].num_examples
        if (values["round"], values["client_id"]) != (plan.round, client.client_id):
            raise InvalidReply(f"it sent an update of round {values['round'] + 1} as client {values['client_id']}")
        if values["num_examples"] != num_examples:
            raise InvalidReply(f"it reports {values['num_examples']} images, and reported {num_examples} before")
        if not (0 <= values["loss"] <= MAX_LOSS and 0 <= values["norm"] < math.inf):
            raise InvalidReply("its loss or the norm of its update is out of range")
        update, upload = self._read_tensors(message, context, update_specs, accumulator.weights)
        max_norm = self.config.max_update_norm
        for vector in (update, upload):
            norm = 0.0 if vector is None else float(l2_norms(vector))
            if not math.isfinite(norm):
                raise InvalidReply("its update is not finite")
            if norm > max_norm:
                raise InvalidReply(f"its update has norm {norm:.3g}, and max_update_norm is {max_norm:g}")
        norm = values["norm"] if math.isfinite(context.clipping_norm) else float(l2_norms(update))
        accumulator.add(client.client_id, update, upload, values["loss"], min(norm, max_norm))

    def _read_tensors(
        self, message: Message, context: RoundContext, update_specs: TensorSpecs, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the client's update [W], decompressed, and what its correction uploads [P]."""
        device = self.setup.device
        arrays = from_record(message.content.get("update"), update_specs, device)
        invalid_reason = getattr(context.compressor, "invalid_reason", None)
        num_shared = self.setup.model.num_shared
        num_sent = num_shared if context.personal_mask is None else int((~context.personal_mask).sum())
        try:
            reason = invalid_reason(arrays, num_sent) if invalid_reason is not None and num_sent else None
            update = None if reason else decompress(arrays, num_shared, context)
        except Exception as error:  # of a compressor, perhaps a user's own, which did not expect these values
            raise InvalidReply("its update cannot be decompressed") from error
        if update is None:
            raise InvalidReply(f"its update cannot be decompressed: {reason}")
        update = torch.where(self._is_variance_W, update.minimum(weights), update)  # no variance becomes negative
        if context.correction is None or not context.correction.uploads:
            return update, None
        upload_specs = {"upload": (torch.float32, (self.num_trainable,))}
        return update, from_record(message.content.get("upload"), upload_specs, device)["upload"]


class UpdateAccumulator:
    """The updates of a round: with privacy only their sum, otherwise each of them until all can be compared.

    Sums are in float64, so that the result does not depend on the order in which updates arrive.
    """

    def __init__(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, registry: ClientRegistry, num_trainable: int
    ) -> None:
        self.weights, self.plan, self.context, self.config = weights, plan, context, registry.config
        self.num_trainable = num_trainable
        self.names = {client_id: member.name for client_id, member in registry.members.by_id.items()}
        num_clients = len(plan.clients)
        self._indices = {client.client_id: index for index, client in enumerate(plan.clients)}
        self._update_W = torch.zeros_like(weights, dtype=torch.float64)
        self._accepted_K = np.zeros(num_clients, bool)
        self._loss_K, self._norm_K = np.full((2, num_clients), math.nan)
        is_private = math.isfinite(context.clipping_norm)
        self._updates_KW = None if is_private else weights.new_zeros(num_clients, len(weights))
        self._uploads: dict[int, Tensor] = {}

    def has(self, client_id: int) -> bool:
        return bool(self._accepted_K[self._indices[client_id]])

    def add(self, client_id: int, update_W: Tensor, upload_P: Tensor | None, loss: float, norm: float) -> None:
        index = self._indices[client_id]
        self._accepted_K[index], self._loss_K[index], self._norm_K[index] = True, loss, norm
        if upload_P is not None:
            self._uploads[client_id] = upload_P
        if self._updates_KW is None:
            self._update_W += self.plan.clients[index].weight * update_W.double()
        else:
            self._updates_KW[index] = update_W

    def result(self, rejections: Mapping[int, str]) -> CohortResult:
        """Return the result of the round; the server stores of each client only which round it used last."""
        bounds = Bounds({}, {}, {}) if self._updates_KW is None else self._bound_updates(self._updates_KW)
        uploads_P, clipped_uploads = self._bound_uploads()
        clipped_losses = {} if self._updates_KW is None else self._bound_losses()
        left_out = {id: f"{self.names[id]} is left out: {reason}" for id, reason in bounds.left_out.items()}
        client_states: dict[int, ClientState] = {}
        if _clients_keep_state(self.context):
            client_states = {client_id: {LAST_ROUND: torch.tensor(self.plan.round)} for client_id in self._accepted}
        return CohortResult(
            update_W=self._update_W.float(),
            uploads_P=uploads_P,
            accepted_K=self._accepted_K,
            loss_K=self._loss_K,
            norm_K=self._norm_K,
            client_states=client_states,
            updates_KW=self._updates_KW if self.context.keep_client_updates else None,
            rejection_reasons={**rejections, **left_out},
            clipping_reasons=join_reasons(bounds.clipped, clipped_uploads, clipped_losses),
        )

    @property
    def _accepted(self) -> dict[int, int]:
        """The place in the plan of each accepted client, by client id."""
        return {client_id: k for client_id, k in self._indices.items() if self._accepted_K[k]}

    def _bound_updates(self, updates_KW: Tensor) -> Bounds:
        """Add the updates up, scaled in place to what the others allow, and return how they were bounded."""
        ids, rows = [*self._accepted], updates_KW[[*self._accepted.values()]]
        bounds = bound_updates(rows[:, : self.num_trainable], ids, self.config)
        statistics = bound_norms(rows[:, self.num_trainable :], ids, self.config, "change of BatchNorm statistics")
        for client_id, k in self._accepted.items():
            scale = bounds.scales.get(client_id, 1.0)
            self._accepted_K[k] = scale > 0
            self._norm_K[k] *= scale
            updates_KW[k, : self.num_trainable] *= scale
            updates_KW[k, self.num_trainable :] *= statistics.scales.get(client_id, 1.0) if scale else 0.0
            self._update_W += self.plan.clients[k].weight * updates_KW[k].double()
        clipped_statistics = {id: reason for id, reason in statistics.clipped.items() if self.has(id)}
        return replace(bounds, clipped=join_reasons(bounds.clipped, clipped_statistics))

    def _bound_uploads(self) -> tuple[Tensor | None, Mapping[int, str]]:
        """Return the sum of what the accepted clients uploaded for a correction, and why uploads were clipped."""
        ids = [client_id for client_id in self._accepted if client_id in self._uploads]
        if not ids:
            return None, {}
        bounds = bound_norms(torch.stack([self._uploads[id] for id in ids]), ids, self.config, "upload")
        terms = (self._uploads[id].double() * bounds.scales.get(id, 1.0) for id in ids)
        return reduce(torch.add, terms).float(), bounds.clipped

    def _bound_losses(self) -> dict[int, str]:
        """Lower losses that are far above those of the others, which would spoil the reported mean; return why."""
        accepted = self._accepted
        limit = max_counted_loss(self._loss_K[[*accepted.values()]].tolist())
        outsized = {id: self._loss_K[k] for id, k in accepted.items() if self._loss_K[k] > limit}
        self._loss_K = np.minimum(self._loss_K, limit)
        return {id: f"its loss is {loss:.3g}, and counts as {limit:.3g}" for id, loss in outsized.items()}


def _variances(setup: EngineSetup) -> Tensor:
    """Return where the weights are the variances of a BatchNorm [W], which must not become negative."""
    shapes = setup.model.shapes.items()
    masks = [torch.full((math.prod(shape),), name.endswith("running_var")) for name, shape in shapes]
    return torch.cat(masks).to(setup.device)


def _update_specs(weights: Tensor, context: RoundContext) -> TensorSpecs:
    num_shared = len(weights) if context.personal_mask is None else int((~context.personal_mask).sum())
    zeros, compressor = torch.zeros(num_shared), context.compressor
    tensors = {"values": zeros}
    if compressor is not None and num_shared:
        tensors = compressor.encode(zeros, np.random.default_rng(0))
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def _clients_keep_state(context: RoundContext) -> bool:
    has_residual = context.compressor is not None and context.compressor.error_feedback
    has_other_state = context.personal_mask is not None or context.correction is not None
    return has_residual or has_other_state or context.client_optimizer.persist_state
