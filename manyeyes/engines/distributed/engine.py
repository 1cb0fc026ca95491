"""An engine over the processes of `torchrun`: each trains its part of a round's clients on an engine of its own.

Every process plans the same rounds and steps the same server, so only sums travel: one all-reduce of the update per
round, and the statistics of each client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import PersonalLayers
from manyeyes.core.plan import RoundPlan
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext, empty_result
from manyeyes.engines.base import EngineBase, EngineSetup, GroupTrainer
from manyeyes.engines.distributed.data_parallel import ClientGroup, GroupCache
from manyeyes.engines.distributed.process_group import all_reduce, init_process_group, peer_errors
from manyeyes.engines.load_balancing import Assignment, ClientCost, balance_with_groups


@dataclass(frozen=True, eq=False)
class _Partial:
    """The result of some clients of the plan."""

    client_indices: list[int]
    result: CohortResult


class DistributedEngine(EngineBase):
    """An engine whose clients train on all processes; equal to the engine alone up to the order of its sums."""

    def __init__(self, engine: EngineBase, setup: EngineSetup) -> None:
        self.engine, self.dist, self._device = engine, setup.dist, setup.device
        self.name, self.precision, self.compiles = engine.name, engine.precision, engine.compiles
        self.num_trainable, self.num_augment_uniforms = engine.num_trainable, engine.num_augment_uniforms
        engine.on_device_busy = lambda: self.on_device_busy()
        self._groups: GroupCache | None = None
        if engine.group_trainer is not None:
            # of the model as it was given: groups must be the same on all processes, whichever layers each exchanged
            self._groups = GroupCache(setup.model, setup.image_size)

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self.engine.personal_mask(personal_layers)

    def prefetch(self, plan: RoundPlan) -> None:
        self.engine.prefetch(self.shard(plan))

    def __enter__(self) -> Self:
        init_process_group(self._device)
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.engine.__exit__(kind, error, traceback)

    def shard(self, plan: RoundPlan) -> RoundPlan:
        """Return the clients that this process trains where none is trained by several."""
        indices = self._assign(plan, math.inf).unsplit[self.dist.rank]
        return replace(plan, clients=tuple(plan.clients[index] for index in indices))

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        local = self._train_local(weights, plan, context, client_states)
        has_uploads = context.correction is not None and context.correction.uploads
        sums = [local.result.update_W]
        if has_uploads:
            uploads = local.result.uploads_P
            sums.append(torch.zeros_like(weights[: self.num_trainable]) if uploads is None else uploads)
        total = all_reduce(torch.cat(sums))
        statistics = self._gather_statistics(plan, local)
        return CohortResult(
            update_W=total[: len(weights)],
            uploads_P=total[len(weights) :] if has_uploads else None,
            accepted_K=statistics[:, 0] > 0,
            loss_K=statistics[:, 1],
            norm_K=statistics[:, 2],
            client_states=self._gather_client_states(plan, local, weights.device),
            updates_KW=self._gather_updates(weights, plan, local) if context.keep_client_updates else None,
        )

    def _train_local(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> _Partial:
        """Train the clients that this process answers for."""
        cannot_split = self._groups is None or (
            context.correction is not None and context.correction.needs_full_gradient
        )
        allreduce_cost = math.inf if cannot_split or self._groups is None else self._groups.allreduce_cost
        assignment = self._assign(plan, allreduce_cost)
        partials = [
            self._train_split(weights, plan, context, client_states, index, members)
            for index, members in assignment.groups
        ]
        indices = assignment.unsplit[self.dist.rank]
        if indices:
            shard = replace(plan, clients=tuple(plan.clients[index] for index in indices))
            partials.append(_Partial(indices, self.engine.train(weights, shard, context, client_states)))
        return _join([partial for partial in partials if partial is not None], weights)

    def _assign(self, plan: RoundPlan, allreduce_cost: float) -> Assignment:
        costs = [ClientCost.from_client(client) for client in plan.clients]
        return balance_with_groups(costs, self.dist.size, allreduce_cost)

    def _train_split(
        self,
        weights: Tensor,
        plan: RoundPlan,
        context: RoundContext,
        client_states: ClientStates,
        index: int,
        members: list[int],
    ) -> _Partial | None:
        """Train a client on several processes, of which the first answers for it."""
        trainer: GroupTrainer | None = self.engine.group_trainer
        assert trainer is not None and self._groups is not None, "this engine cannot train one client on several ranks"
        with peer_errors():
            process_group = self._groups.group(members)
        if self.dist.rank not in members:
            return None
        group = ClientGroup(members.index(self.dist.rank), len(members), partial(all_reduce, group=process_group))
        client = replace(plan, clients=(plan.clients[index],))
        result = trainer.train_in_group(group, weights, client, context, client_states)
        return _Partial([index], result) if self.dist.rank == members[0] else None

    def _gather_statistics(self, plan: RoundPlan, local: _Partial) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return whether each client is accepted, its loss and its norm [K, 3]."""
        statistics = np.zeros((len(plan.clients), 3))
        result = local.result
        statistics[local.client_indices] = np.stack([result.accepted_K, result.loss_K, result.norm_K], 1)
        return np.asarray(np.sum(self.dist.all_gather(statistics), axis=0))

    def _gather_updates(self, weights: Tensor, plan: RoundPlan, local: _Partial) -> Tensor:
        updates_KW = weights.new_zeros(len(plan.clients), len(weights))
        if local.result.updates_KW is not None:
            updates_KW[local.client_indices] = local.result.updates_KW
        return all_reduce(updates_KW)

    def _gather_client_states(self, plan: RoundPlan, local: _Partial, device: torch.device) -> dict[int, ClientState]:
        on_host = {
            client_id: {name: tensor.cpu() for name, tensor in client_state.items()}
            for client_id, client_state in local.result.client_states.items()
        }
        states = {client_id: state for shard in self.dist.all_gather(on_host) for client_id, state in shard.items()}
        return {
            client.client_id: {name: tensor.to(device) for name, tensor in states[client.client_id].items()}
            for client in plan.clients
            if client.client_id in states
        }


def _join(partials: list[_Partial], weights: Tensor) -> _Partial:
    """Return several results as one."""
    if len(partials) == 1:
        return partials[0]
    results = [one.result for one in partials]
    if not results:
        return _Partial([], empty_result(weights))
    uploads = [result.uploads_P for result in results if result.uploads_P is not None]
    updates = [result.updates_KW for result in results if result.updates_KW is not None]
    joined = CohortResult(
        update_W=torch.stack([result.update_W for result in results]).sum(0),
        uploads_P=torch.stack(uploads).sum(0) if uploads else None,
        accepted_K=np.concatenate([result.accepted_K for result in results]),
        loss_K=np.concatenate([result.loss_K for result in results]),
        norm_K=np.concatenate([result.norm_K for result in results]),
        client_states={client_id: state for result in results for client_id, state in result.client_states.items()},
        updates_KW=torch.cat(updates) if updates else None,
    )
    return _Partial([index for one in partials for index in one.client_indices], joined)
