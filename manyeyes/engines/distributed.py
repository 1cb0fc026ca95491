"""Many processes, one training: each rank trains its share of a round's clients on an engine of its own.

The processes come from `torchrun`. Every rank plans the same rounds and steps the same server, so only sums travel: one
all-reduce of the update a round, and what is known of each client.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from manyeyes.core.algorithm import PersonalLayers
from manyeyes.core.engine import CohortResult, Engine, RoundContext, empty_result
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Ints
from manyeyes.core.state import ClientStates
from manyeyes.engines.data_parallel import ClientGroup, GroupCache
from manyeyes.engines.load_balancing import Assignment, ClientCost, balance_with_groups
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel

T = TypeVar("T")


class PeerLostError(RuntimeError):
    """Another process of the training has ended."""


@dataclass(frozen=True)
class DistInfo:
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1

    def any(self, wish: bool) -> bool:
        """Whether any process wishes it."""
        return any(self.all_gather(wish)) if self.size > 1 else wish

    def all_gather(self, mine: T) -> list[T]:
        """What every process has, in the order of ranks."""
        if self.size == 1:
            return [mine]
        all_of_them: list[Any] = [None] * self.size
        with peer_errors():
            dist.all_gather_object(all_of_them, mine)
        return all_of_them

    def shard(self, things: Ints) -> Ints:
        """Some of the things, so that each is of one process."""
        return np.array_split(things, self.size)[self.rank]


def dist_info() -> DistInfo:
    """As the environment says: `torchrun` sets RANK and WORLD_SIZE."""
    return DistInfo(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def init_process_group(device: torch.device) -> None:
    """Connect to the other processes, once for all the trainings of this one; one that is alone connects to nobody."""
    if dist_info().size == 1 or dist.is_initialized():
        return
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()  # NCCL wants a GPU for each
    with peer_errors():
        dist.init_process_group("nccl" if device.type == "cuda" and alone else "gloo")
    atexit.register(dist.destroy_process_group)


def shutdown(code: int) -> None:
    """End this process, if it is one of several, at once: interpreters that end under PyTorch's threads may abort."""
    if not dist.is_initialized():
        return
    if code == 0:
        with suppress(RuntimeError):
            dist.barrier()  # nobody hangs up on one who is still listening
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def peer_errors() -> Iterator[None]:
    """What the network says when a process has gone is not what a person wants to read."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # torchrun sends it now; what is to be saved and said comes first
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PeerLostError(f"another process of this training has ended ({line})") from error


class DistributedEngine:
    """An engine whose clients train on all ranks; equal to the engine alone up to the order of its sums."""

    def __init__(self, inner: Engine, dist: DistInfo, model: FlatModel) -> None:
        """`model` as it was given: who works together must be the same on all ranks, whatever layers each exchanged."""
        self.engine, self.dist = inner, dist
        self.num_trainable, self.num_augment_uniforms = inner.num_trainable, inner.num_augment_uniforms
        self._teams: GroupCache | None = None
        if isinstance(inner, ReferenceEngine):  # the other engines' steps are captured before anyone could add to them
            self._teams = GroupCache(model, inner.augment.shape(*inner.population.image_shape[:2]))

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self.engine.personal_mask(personal_layers)

    def shard(self, plan: RoundPlan) -> RoundPlan:
        """The clients that this rank trains where none is trained by several."""
        mine = self._shares(plan, math.inf).unsplit[self.dist.rank]
        return replace(plan, clients=tuple(plan.clients[place] for place in mine))

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        mine, part = self._mine(weights, plan, context, client_states)
        reports = context.correction is not None and context.correction.uploads
        sums = [part.update_W]
        if reports:
            sums.append(torch.zeros_like(weights[: self.num_trainable]) if part.uploads_P is None else part.uploads_P)
        total = self._summed(torch.cat(sums))
        notes = np.zeros((len(plan.clients), 3))
        notes[mine] = np.stack([part.accepted_K, part.loss_K, part.norm_K], 1)
        notes = np.sum(self.dist.all_gather(notes), axis=0)
        each_KW = None
        if context.keep_client_updates:
            each_KW = weights.new_zeros(len(plan.clients), len(weights))
            if part.updates_KW is not None:
                each_KW[mine] = part.updates_KW
            each_KW = self._summed(each_KW)
        keeps = {key: kept for some in self.dist.all_gather(_on_host(part.client_states)) for key, kept in some.items()}
        return CohortResult(
            update_W=total[: len(weights)],
            uploads_P=total[len(weights) :] if reports else None,
            accepted_K=notes[:, 0] > 0,
            loss_K=notes[:, 1],
            norm_K=notes[:, 2],
            client_states={
                client.client_id: {name: tensor.to(weights.device) for name, tensor in keeps[client.client_id].items()}
                for client in plan.clients
                if client.client_id in keeps
            },
            updates_KW=each_KW,
        )

    def _mine(
        self, weights: Tensor, plan: RoundPlan, work: RoundContext, clients: ClientStates
    ) -> tuple[list[int], CohortResult]:
        """The places of the clients that this rank answers for, and what came of them."""
        alone = self._teams is None or (work.correction is not None and work.correction.needs_full_gradient)
        agreeing = math.inf if alone or self._teams is None else self._teams.allreduce_cost
        shares = self._shares(plan, agreeing)
        parts = [self._together(weights, plan, work, clients, *team) for team in shares.groups]
        mine = shares.unsplit[self.dist.rank]
        if mine:
            chosen = replace(plan, clients=tuple(plan.clients[place] for place in mine))
            parts.append((mine, self.engine.train(weights, chosen, work, clients)))
        return _joined([part for part in parts if part is not None], weights)

    def _shares(self, plan: RoundPlan, agreeing: float) -> Assignment:
        return balance_with_groups(
            [ClientCost.from_client(client) for client in plan.clients], self.dist.size, agreeing
        )

    def _together(
        self,
        weights: Tensor,
        plan: RoundPlan,
        work: RoundContext,
        clients: ClientStates,
        place: int,
        members: list[int],
    ) -> tuple[list[int], CohortResult] | None:
        """A client that is trained by several ranks, of which the first answers for it."""
        assert self._teams is not None and isinstance(self.engine, ReferenceEngine), (
            "only the reference engine trains one client on several ranks"
        )
        with peer_errors():
            group = self._teams.group(members)
        if self.dist.rank not in members:
            return None
        self.engine.group = ClientGroup(members.index(self.dist.rank), len(members), partial(self._summed, group=group))
        try:
            part = self.engine.train(weights, replace(plan, clients=(plan.clients[place],)), work, clients)
        finally:
            self.engine.group = None
        return ([place], part) if self.dist.rank == members[0] else None

    def _summed(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """The sum over all ranks, or those of a group, the same bits on each."""
        with peer_errors():
            if dist.get_backend() == "nccl":
                dist.all_reduce(tensor, group=group)
                return tensor
            host = tensor.cpu()
            dist.all_reduce(host, group=group)
            return host.to(tensor.device)


def _joined(parts: list[tuple[list[int], CohortResult]], weights: Tensor) -> tuple[list[int], CohortResult]:
    """Several results as one."""
    if len(parts) == 1:
        return parts[0]
    places, found = [place for some, _ in parts for place in some], [part for _, part in parts]
    if not found:
        return [], empty_result(weights)
    reports = [part.uploads_P for part in found if part.uploads_P is not None]
    apart = [part.updates_KW for part in found if part.updates_KW is not None]
    whole = CohortResult(
        update_W=torch.stack([part.update_W for part in found]).sum(0),
        uploads_P=torch.stack(reports).sum(0) if reports else None,
        accepted_K=np.concatenate([part.accepted_K for part in found]),
        loss_K=np.concatenate([part.loss_K for part in found]),
        norm_K=np.concatenate([part.norm_K for part in found]),
        client_states={key: kept for part in found for key, kept in part.client_states.items()},
        updates_KW=torch.cat(apart) if apart else None,
    )
    return places, whole


def _on_host(keeps: dict[int, dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    return {key: {name: tensor.cpu() for name, tensor in kept.items()} for key, kept in keeps.items()}
