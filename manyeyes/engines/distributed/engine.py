"""An engine over the processes of `torchrun`: each trains its part of a round's clients on an engine of its own.

Every process plans the same rounds and steps the same server, so only sums travel: one all-reduce of the update per
round, and the statistics of each client.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.plan import RoundPlan
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext, in_plan_order
from manyeyes.engines.base import EngineBase, EngineSetup, merge_results
from manyeyes.engines.distributed.data_parallel import ClientGroup, GroupCache
from manyeyes.engines.distributed.process_group import all_reduce, init_process_group, peer_errors
from manyeyes.engines.load_balancing import Assignment, ClientCost, balance_with_groups

PartialResult = tuple[list[int], CohortResult]  # the result of the clients with these indices in the plan


class DistributedEngine(EngineBase):
    """An engine whose clients train on all processes; equal to the engine alone up to the order of its sums."""

    def __init__(self, engine: EngineBase, setup: EngineSetup) -> None:
        super().__init__(setup)
        self.engine, self.dist, self._device = engine, setup.dist, setup.device
        self.name, self.precision, self.compiles = engine.name, engine.precision, engine.compiles
        self.plans_ahead = engine.plans_ahead
        engine.on_device_busy = lambda: self.on_device_busy()
        # of the model as it was given: groups must be the same on all processes, whichever layers each replaced
        channels = setup.population.image_shape[2]
        self._groups = GroupCache(setup.model, setup.image_size, channels) if engine.splits_clients else None

    def prefetch(self, plan: RoundPlan) -> None:
        unsplit = self._assign(plan, math.inf).unsplit[self.dist.rank]  # where no client is trained by several ranks
        self.engine.prefetch(_subset(plan, unsplit))

    def __enter__(self) -> Self:
        init_process_group(self._device)
        self.engine.__enter__()
        return self

    def close(self) -> None:
        self.engine.close()

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        results = self._train_local(weights, plan, context, client_states)
        local = merge_results(weights, plan, results, context.keep_client_updates)
        uploads = [weights.new_zeros(self.num_trainable) if local.uploads_P is None else local.uploads_P]
        has_uploads = context.correction is not None and context.correction.uploads
        total = all_reduce(torch.cat([local.update_W, *(uploads if has_uploads else [])]))
        statistics_K3 = np.stack([local.accepted_K, local.loss_K, local.norm_K], 1)
        statistics_K3 = np.sum(self.dist.all_gather(statistics_K3), axis=0)
        return CohortResult(
            update_W=total[: len(weights)],
            uploads_P=total[len(weights) :] if has_uploads else None,
            accepted_K=statistics_K3[:, 0] > 0,
            loss_K=statistics_K3[:, 1],
            norm_K=statistics_K3[:, 2],
            client_states=in_plan_order(plan, self._gather_client_states(local, weights.device)),
            updates_KW=None if local.updates_KW is None else all_reduce(local.updates_KW),
        )

    def _train_local(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> list[PartialResult]:
        """Return the results of the clients that this process answers for."""
        needs_full_gradient = context.correction is not None and context.correction.needs_full_gradient
        can_split = self._groups is not None and not needs_full_gradient
        assignment = self._assign(plan, self._groups.allreduce_cost if self._groups and can_split else math.inf)
        results = []
        for index, members in assignment.groups:
            if engine := self._engine_in_group(members):
                result = engine.train(weights, _subset(plan, [index]), context, client_states)
                results += [([index], result)] if self.dist.rank == members[0] else []
        if indices := assignment.unsplit[self.dist.rank]:
            results.append((indices, self.engine.train(weights, _subset(plan, indices), context, client_states)))
        return results

    def _assign(self, plan: RoundPlan, allreduce_cost: float) -> Assignment:
        return balance_with_groups([ClientCost.from_client(c) for c in plan.clients], self.dist.size, allreduce_cost)

    def _engine_in_group(self, members: list[int]) -> EngineBase | None:
        """Return the engine that trains together with other ranks; None if this rank is not a member."""
        assert self._groups is not None, "this engine cannot train one client on several ranks"
        with peer_errors():
            process_group = self._groups.group(members)
        if self.dist.rank not in members:
            return None
        sum_over_members = partial(all_reduce, group=process_group)
        return self.engine.in_group(ClientGroup(members.index(self.dist.rank), len(members), sum_over_members))

    def _gather_client_states(self, local: CohortResult, device: torch.device) -> dict[int, ClientState]:
        shards = self.dist.all_gather(
            {k: _move(state, torch.device("cpu")) for k, state in local.client_states.items()}
        )
        return {client_id: _move(state, device) for shard in shards for client_id, state in shard.items()}


def _move(client_state: ClientState, device: torch.device) -> ClientState:
    return {name: tensor.to(device) for name, tensor in client_state.items()}


def _subset(plan: RoundPlan, indices: list[int]) -> RoundPlan:
    return replace(plan, clients=tuple(plan.clients[index] for index in indices))
