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

from manyeyes.engine.reference import Reference
from manyeyes.engine.sharing import Job, Shares, share_jobs
from manyeyes.engine.teams import Team, Teams
from manyeyes.models.flat import FlatModel
from manyeyes.population import Ints
from manyeyes.work import Aggregate, Clients, Engine, Personal, Plan, Work, nothing

T = TypeVar("T")


class Lost(RuntimeError):
    """Another process of the training has ended."""


@dataclass(frozen=True)
class World:
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1

    def agree(self, wish: bool) -> bool:
        """Whether any process wishes it."""
        return any(self.everyones(wish)) if self.size > 1 else wish

    def everyones(self, mine: T) -> list[T]:
        """What every process has, in the order of ranks."""
        if self.size == 1:
            return [mine]
        all_of_them: list[Any] = [None] * self.size
        with losses_told():
            dist.all_gather_object(all_of_them, mine)
        return all_of_them

    def my_part(self, things: Ints) -> Ints:
        """Some of the things, so that each is of one process."""
        return np.array_split(things, self.size)[self.rank]


def world() -> World:
    """As the environment says: `torchrun` sets RANK and WORLD_SIZE."""
    return World(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def join(device: torch.device) -> None:
    """Connect to the other processes, once for all the trainings of this one; one that is alone connects to nobody."""
    if world().size == 1 or dist.is_initialized():
        return
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()  # NCCL wants a GPU for each
    with losses_told():
        dist.init_process_group("nccl" if device.type == "cuda" and alone else "gloo")
    atexit.register(dist.destroy_process_group)


def leave(code: int) -> None:
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
def losses_told() -> Iterator[None]:
    """What the network says when a process has gone is not what a person wants to read."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # torchrun sends it now; what is to be saved and said comes first
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Lost(f"another process of this training has ended ({line})") from error


class Distributed:
    """An engine whose clients train on all ranks; equal to the engine alone up to the order of its sums."""

    def __init__(self, inner: Engine, here: World, model: FlatModel) -> None:
        """`model` as it was given: who works together must be the same on all ranks, whatever layers each exchanged."""
        self.inner, self.here = inner, here
        self.trained, self.dice = inner.trained, inner.dice
        self._teams: Teams | None = None
        if isinstance(inner, Reference):  # the other engines' steps are captured before anyone could add to them
            self._teams = Teams(model, inner.augment.shape(*inner.population.image_shape[:2]))

    def personal(self, personal: Personal) -> Tensor:
        return self.inner.personal(personal)

    def part(self, plan: Plan) -> Plan:
        """The clients that this rank trains where none is trained by several."""
        mine = self._shares(plan, math.inf).whole[self.here.rank]
        return replace(plan, clients=tuple(plan.clients[place] for place in mine))

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate:
        mine, part = self._mine(weights, plan, work, clients)
        reports = work.correct is not None and work.correct.reports
        sums = [part.update_W]
        if reports:
            sums.append(torch.zeros_like(weights[: self.trained]) if part.reports_P is None else part.reports_P)
        total = self._summed(torch.cat(sums))
        notes = np.zeros((len(plan.clients), 3))
        notes[mine] = np.stack([part.kept_K, part.loss_K, part.norm_K], 1)
        notes = np.sum(self.here.everyones(notes), axis=0)
        each_KW = None
        if work.apart:
            each_KW = weights.new_zeros(len(plan.clients), len(weights))
            if part.updates_KW is not None:
                each_KW[mine] = part.updates_KW
            each_KW = self._summed(each_KW)
        keeps = {key: kept for some in self.here.everyones(_on_host(part.keeps)) for key, kept in some.items()}
        return Aggregate(
            update_W=total[: len(weights)],
            reports_P=total[len(weights) :] if reports else None,
            kept_K=notes[:, 0] > 0,
            loss_K=notes[:, 1],
            norm_K=notes[:, 2],
            keeps={
                client.key: {name: tensor.to(weights.device) for name, tensor in keeps[client.key].items()}
                for client in plan.clients
                if client.key in keeps
            },
            updates_KW=each_KW,
        )

    def _mine(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> tuple[list[int], Aggregate]:
        """The places of the clients that this rank answers for, and what came of them."""
        alone = self._teams is None or (work.correct is not None and work.correct.whole)
        agreeing = math.inf if alone or self._teams is None else self._teams.agreeing
        shares = self._shares(plan, agreeing)
        parts = [self._together(weights, plan, work, clients, *team) for team in shares.teams]
        mine = shares.whole[self.here.rank]
        if mine:
            chosen = replace(plan, clients=tuple(plan.clients[place] for place in mine))
            parts.append((mine, self.inner.train(weights, chosen, work, clients)))
        return _joined([part for part in parts if part is not None], weights)

    def _shares(self, plan: Plan, agreeing: float) -> Shares:
        return share_jobs([Job.of(client) for client in plan.clients], self.here.size, agreeing)

    def _together(
        self, weights: Tensor, plan: Plan, work: Work, clients: Clients, place: int, members: list[int]
    ) -> tuple[list[int], Aggregate] | None:
        """A client that is trained by several ranks, of which the first answers for it."""
        assert self._teams is not None and isinstance(self.inner, Reference), (
            "only the reference engine trains one client on several ranks"
        )
        with losses_told():
            group = self._teams.group(members)
        if self.here.rank not in members:
            return None
        self.inner.team = Team(members.index(self.here.rank), len(members), partial(self._summed, group=group))
        try:
            part = self.inner.train(weights, replace(plan, clients=(plan.clients[place],)), work, clients)
        finally:
            self.inner.team = None
        return ([place], part) if self.here.rank == members[0] else None

    def _summed(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """The sum over all ranks, or those of a group, the same bits on each."""
        with losses_told():
            if dist.get_backend() == "nccl":
                dist.all_reduce(tensor, group=group)
                return tensor
            host = tensor.cpu()
            dist.all_reduce(host, group=group)
            return host.to(tensor.device)


def _joined(parts: list[tuple[list[int], Aggregate]], weights: Tensor) -> tuple[list[int], Aggregate]:
    """Several results as one."""
    if len(parts) == 1:
        return parts[0]
    places, found = [place for some, _ in parts for place in some], [part for _, part in parts]
    if not found:
        return [], nothing(weights)
    reports = [part.reports_P for part in found if part.reports_P is not None]
    apart = [part.updates_KW for part in found if part.updates_KW is not None]
    whole = Aggregate(
        update_W=torch.stack([part.update_W for part in found]).sum(0),
        reports_P=torch.stack(reports).sum(0) if reports else None,
        kept_K=np.concatenate([part.kept_K for part in found]),
        loss_K=np.concatenate([part.loss_K for part in found]),
        norm_K=np.concatenate([part.norm_K for part in found]),
        keeps={key: kept for part in found for key, kept in part.keeps.items()},
        updates_KW=torch.cat(apart) if apart else None,
    )
    return places, whole


def _on_host(keeps: dict[int, dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    return {key: {name: tensor.cpu() for name, tensor in kept.items()} for key, kept in keeps.items()}
