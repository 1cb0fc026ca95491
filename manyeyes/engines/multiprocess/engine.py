"""The ranks engine: a round's clients are shared out over processes of one thread each, and what they find is added up.

On a CPU, processes of one thread beat the threads of one process: they wait for each other once a round, not at every
layer.
"""

from __future__ import annotations

import mmap
import pickle
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.engine import CohortResult, RoundContext
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.state import ClientStates
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.load_balancing import balance_clients
from manyeyes.engines.multiprocess.worker import Worker, available, cores, serialize
from manyeyes.engines.prefetch import ImagePrefetcher, PrefetchBuffer
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.models.flat import FlatModel

DEATHS = 3  # of the workers of one share in one round, before it is given up
ELSEWHERE = torch.empty(0)  # stands for a tensor that lies in shared memory


@dataclass(frozen=True, eq=False)
class Task:
    """A worker's share of a round; the weights and what the server shares lie in memory that all see."""

    plan: RoundPlan
    work: RoundContext
    clients: ClientStates
    shelf: PrefetchBuffer | None  # what was read ahead
    places: list[int]  # of its clients in the round


class MultiprocessEngine:
    """The reference engine in `workers` processes (by default one a core), which `close` ends.

    A process is started when it is first needed. One that dies is replaced, and its share of the round run again.
    """

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Preprocess,
        device: torch.device,
        workers: int | None = None,
        precision: str = "float32",
    ) -> None:
        if reason := available():
            raise ValueError(f"engine multiprocess needs workers and {reason}: use engine=reference")
        if device.type != "cpu":
            raise ValueError(f"engine multiprocess trains on the CPU and the device is {device}: use device=cpu")
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}: it must be at least 1")
        model, self.precision = FlatModel(optimize_for_cpu(model.module)), precision
        self._reference = ReferenceEngine(model, population, augment, device, precision)
        self.num_trainable, self.num_augment_uniforms, self.personal_mask = (
            model.num_trainable,
            augment.num_uniforms,
            self._reference.personal_mask,
        )
        count, dtype = workers or cores(), model.read().dtype
        self._weights = _shared_memory(dtype, model.num_shared)
        self._shared = _shared_memory(dtype, model.num_trainable)
        self._updates = _shared_memory(dtype, count, model.num_shared)
        self._reports = _shared_memory(dtype, count, model.num_trainable)
        self._each = torch.empty(0, model.num_shared, dtype=dtype)  # every client's update, where they are wanted apart
        self._workers: dict[int, Worker] = {}

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Every client's local training, and the sum of what the finite ones send; the same for as many workers."""
        self._weights.copy_(weights)
        if context.correction_state is not None:
            self._shared.copy_(context.correction_state)
        if context.keep_client_updates:
            self._make_room(len(plan.clients))
        shares = [share for share in balance_clients(plan.clients, len(self._updates)) if share]
        tasks = [self._task(plan, share, context, client_states) for share in shares]
        try:
            for place, task in enumerate(tasks):
                self._tell(place, task)
            parts = [self._hear(place, task, plan.round) for place, task in enumerate(tasks)]
        except BaseException:  # what the other workers are at is of no use any more
            self.close()
            raise
        each = self._each[: len(plan.clients)].clone() if context.keep_client_updates else None
        return self._merged(plan, shares, parts, each)

    def _make_room(self, clients: int) -> None:
        """For the updates of so many; processes that were forked before do not see it, and are ended."""
        if clients > len(self._each):
            self.close()
            room = clients + clients // 4  # for rounds of as many by chance
            self._each = _shared_memory(self._weights.dtype, room, len(self._weights))

    def close(self) -> None:
        """End the processes; the next `train` starts others."""
        while self._workers:
            _, worker = self._workers.popitem()
            worker.stop()

    def __enter__(self) -> MultiprocessEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _task(self, plan: RoundPlan, share: list[int], work: RoundContext, clients: ClientStates) -> bytes:
        chosen = tuple(plan.clients[i] for i in share)
        task = Task(
            plan=replace(plan, clients=chosen),
            work=work if work.correction_state is None else replace(work, correction_state=ELSEWHERE),
            clients={client.client_id: clients[client.client_id] for client in chosen if client.client_id in clients},
            shelf=self._ahead.shelf if self._ahead else None,
            places=share,
        )
        try:
            return serialize(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"engine multiprocess cannot send a part of the algorithm to its workers ({error}): define its class at the "
                "top of a module, or use engine=reference"
            ) from error

    def _tell(self, place: int, task: bytes) -> None:
        if place not in self._workers:
            with self._ahead.still if self._ahead else nullcontext():
                self._workers[place] = Worker(partial(self._work, place), self._workers.values())
        self._workers[place].send(task)

    def _hear(self, place: int, task: bytes, round: int) -> CohortResult:
        """A worker's part of the round, from its replacement where it dies."""
        for death in range(DEATHS):
            part: CohortResult | None = self._workers[place].receive()
            if part is not None:
                return part
            how = self._workers.pop(place).stop()
            if death + 1 < DEATHS:
                print(f"round {round + 1}: worker {place + 1} died ({how}) and is replaced", file=sys.stderr)
                self._tell(place, task)
        raise RuntimeError(
            f"worker {place + 1} died {DEATHS} times in round {round + 1} ({how}), perhaps for want of memory: use "
            "fewer workers or smaller batches"
        )

    def _work(self, place: int, task: Task) -> CohortResult:
        """What the process of that place does of a round: its sums go into its own row of the shared memory."""
        if self._ahead:
            self._ahead.shelf = task.shelf
        work = task.work if task.work.correction_state is None else replace(task.work, correction_state=self._shared)
        part = self._reference.train(self._weights, task.plan, work, task.clients)
        self._updates[place] = part.update_W
        if part.uploads_P is not None:
            self._reports[place] = part.uploads_P
        if part.updates_KW is not None:
            self._each[task.places] = part.updates_KW
        return replace(
            part, update_W=ELSEWHERE, uploads_P=None if part.uploads_P is None else ELSEWHERE, updates_KW=None
        )

    def _merged(
        self, plan: RoundPlan, shares: list[list[int]], parts: list[CohortResult], each_KW: Tensor | None
    ) -> CohortResult:
        """One result, its clients in the order of the plan."""
        total = torch.zeros_like(self._weights)
        reports: Tensor | None = None
        kept, (loss, norm) = np.zeros(len(plan.clients), bool), np.zeros((2, len(plan.clients)))
        keeps: dict[int, dict[str, Tensor]] = {}
        for place, (share, part) in enumerate(zip(shares, parts, strict=True)):
            total += self._updates[place]
            if part.uploads_P is not None:
                reports = self._reports[place].clone() if reports is None else reports + self._reports[place]
            kept[share], loss[share], norm[share] = part.accepted_K, part.loss_K, part.norm_K
            keeps |= part.client_states
        keeps = {client.client_id: keeps[client.client_id] for client in plan.clients if client.client_id in keeps}
        return CohortResult(total, reports, kept, loss, norm, keeps, each_KW)

    @property
    def _ahead(self) -> ImagePrefetcher | None:
        images = self._reference.population.images
        return images if isinstance(images, ImagePrefetcher) else None


def _shared_memory(dtype: torch.dtype, *shape: int) -> Tensor:
    """Zeros that processes forked later share; pages that nobody writes take no room."""
    room = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)
    return torch.frombuffer(room, dtype=dtype).view(shape)
