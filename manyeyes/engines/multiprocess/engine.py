"""The multiprocess engine: a round's clients are divided among processes of one thread each, and their sums are added.

On a CPU, processes of one thread are faster than the threads of one process: they wait for each other once per round,
not at every layer.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import Algorithm, PersonalLayers
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.registry import register
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.images import PrefetchBuffer
from manyeyes.engines.load_balancing import balance_clients
from manyeyes.engines.multiprocess.worker import (
    PICKLE_ERRORS,
    Worker,
    cores,
    pickle_error,
    serialize,
    unavailable_reason,
)
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.models.flat import FlatModel

MAX_WORKER_DEATHS = 3  # of the workers of one part of a round, before the run ends
SPARE_CLIENTS_FRACTION = 1 / 4  # of memory for clients' updates: random sampling may select more next round
IN_SHARED_MEMORY = torch.empty(0)  # stands for a tensor that is in shared memory


@dataclass(frozen=True, eq=False)
class Task:
    """A worker's part of a round; the weights and the correction's server state are in shared memory."""

    plan: RoundPlan
    context: RoundContext
    client_states: ClientStates
    prefetch_buffer: PrefetchBuffer | None
    client_indices: list[int]  # in the plan of the round


@register("engine", "multiprocess")
class MultiprocessEngine(EngineBase):
    """The reference engine in several worker processes, by default one per core.

    A process is started when it is first needed. One that dies is replaced, and its part of the round is run again.
    """

    name = "multiprocess"

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        preprocess: Preprocess,
        device: torch.device,
        workers: int | None = None,
        precision: str = "float32",
    ) -> None:
        if reason := _unsupported_reason(device):
            raise ValueError(f"engine=multiprocess cannot train here ({reason}): use engine=reference.")
        if workers is not None and workers < 1:
            raise ValueError(f"engine.workers is {workers}: set it to at least 1.")
        model, self.precision = FlatModel(optimize_for_cpu(model.module)), precision
        self._reference = ReferenceEngine(model, population, preprocess, device, precision)
        self.num_trainable, self.num_augment_uniforms = model.num_trainable, preprocess.num_uniforms
        num_workers, dtype = workers or cores(), model.read().dtype
        self._weights = _shared_memory(dtype, model.num_shared)
        self._correction_state = _shared_memory(dtype, model.num_trainable)
        self._update_sums = _shared_memory(dtype, num_workers, model.num_shared)
        self._upload_sums = _shared_memory(dtype, num_workers, model.num_trainable)
        self._updates_KW = torch.empty(0, model.num_shared, dtype=dtype)  # of each client, where they are kept
        self._workers: dict[int, Worker] = {}

    @classmethod
    def supports(cls, algorithm: Algorithm, setup: EngineSetup) -> str | None:
        sent = (
            algorithm.client_optimizer,
            algorithm.correction,
            algorithm.compressor,
            algorithm.personal_model,
            algorithm.loss,
        )
        return _unsupported_reason(setup.device) or pickle_error(sent)

    @classmethod
    def is_recommended(cls, setup: EngineSetup) -> bool:
        return setup.dist.size == 1  # else each process of torchrun is what a worker is

    @classmethod
    def create(cls, setup: EngineSetup) -> Self:
        workers = setup.options.workers or None
        return cls(setup.model, setup.population, setup.preprocess, setup.device, workers, setup.exact_precision)

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self._reference.personal_mask(personal_layers)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients, and sum what the finite ones send; the same bits with the same number of workers."""
        self._weights.copy_(weights)
        if context.correction_state is not None:
            self._correction_state.copy_(context.correction_state)
        if context.keep_client_updates:
            self._allocate_updates(len(plan.clients))
        shares = [indices for indices in balance_clients(plan.clients, len(self._update_sums)) if indices]
        tasks = [self._task(plan, indices, context, client_states) for indices in shares]
        try:
            for number, task in enumerate(tasks):
                self._send(number, task)
            results = [self._receive(number, task, plan.round) for number, task in enumerate(tasks)]
        except BaseException:  # the results of the other workers are not needed
            self.close()
            raise
        updates_KW = self._updates_KW[: len(plan.clients)].clone() if context.keep_client_updates else None
        return self._merge(plan, shares, results, updates_KW)

    def close(self) -> None:
        """End the processes; the next `train` starts new ones."""
        while self._workers:
            _, worker = self._workers.popitem()
            worker.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _allocate_updates(self, num_clients: int) -> None:
        """Make memory for each client's update; processes that were forked before do not see it, and are ended."""
        if num_clients > len(self._updates_KW):
            self.close()
            capacity = num_clients + int(num_clients * SPARE_CLIENTS_FRACTION)
            self._updates_KW = _shared_memory(self._weights.dtype, capacity, len(self._weights))

    def _task(self, plan: RoundPlan, indices: list[int], context: RoundContext, client_states: ClientStates) -> bytes:
        """Return the message for the worker that trains the clients of these indices."""
        clients = tuple(plan.clients[index] for index in indices)
        if context.correction_state is not None:
            context = replace(context, correction_state=IN_SHARED_MEMORY)
        task = Task(
            plan=replace(plan, clients=clients),
            context=context,
            client_states={c.client_id: client_states[c.client_id] for c in clients if c.client_id in client_states},
            prefetch_buffer=getattr(self._images, "buffer", None),
            client_indices=indices,
        )
        try:
            return serialize(task)
        except PICKLE_ERRORS as error:
            raise ValueError(
                f"engine=multiprocess cannot send a component of the algorithm to its workers ({error}): define its "
                "class at module level, or use engine=reference."
            ) from error

    def _send(self, number: int, task: bytes) -> None:
        if number not in self._workers:
            with getattr(self._images, "fork_lock", nullcontext()):
                self._workers[number] = Worker(partial(self._train_share, number), self._workers.values())
        self._workers[number].send(task)

    def _receive(self, number: int, task: bytes, round: int) -> CohortResult:
        """Return a worker's part of the round; one that dies is replaced and given its task again."""
        for death in range(MAX_WORKER_DEATHS):
            result: CohortResult | None = self._workers[number].receive()
            if result is not None:
                return result
            cause = self._workers.pop(number).stop()
            if death + 1 < MAX_WORKER_DEATHS:
                print(f"round {round + 1}: worker {number + 1} died ({cause}) and is replaced", file=sys.stderr)
                self._send(number, task)
        raise RuntimeError(
            f"worker {number + 1} died {MAX_WORKER_DEATHS} times in round {round + 1} ({cause}), perhaps because memory "
            "ran out: set engine.workers or algorithm.batch_size to a smaller number."
        )

    def _train_share(self, number: int, task: Task) -> CohortResult:
        """Train a part of the round in a worker: its sums go into its own row of the shared memory."""
        if hasattr(self._images, "buffer"):
            self._images.buffer = task.prefetch_buffer
        context = task.context
        if context.correction_state is not None:
            context = replace(context, correction_state=self._correction_state)
        result = self._reference.train(self._weights, task.plan, context, task.client_states)
        self._update_sums[number] = result.update_W
        if result.uploads_P is not None:
            self._upload_sums[number] = result.uploads_P
        if result.updates_KW is not None:
            self._updates_KW[task.client_indices] = result.updates_KW
        return replace(
            result,
            update_W=IN_SHARED_MEMORY,
            uploads_P=None if result.uploads_P is None else IN_SHARED_MEMORY,
            updates_KW=None,
        )

    def _merge(
        self, plan: RoundPlan, shares: list[list[int]], results: list[CohortResult], updates_KW: Tensor | None
    ) -> CohortResult:
        """Return one result, its clients in the order of the plan."""
        update_W = torch.zeros_like(self._weights)
        uploads_P: Tensor | None = None
        accepted_K, (loss_K, norm_K) = np.zeros(len(plan.clients), bool), np.zeros((2, len(plan.clients)))
        states: dict[int, ClientState] = {}
        for number, (indices, result) in enumerate(zip(shares, results, strict=True)):
            update_W += self._update_sums[number]
            if result.uploads_P is not None:
                uploads = self._upload_sums[number]
                uploads_P = uploads.clone() if uploads_P is None else uploads_P + uploads
            accepted_K[indices], loss_K[indices], norm_K[indices] = result.accepted_K, result.loss_K, result.norm_K
            states |= result.client_states
        states = {client.client_id: states[client.client_id] for client in plan.clients if client.client_id in states}
        return CohortResult(update_W, uploads_P, accepted_K, loss_K, norm_K, states, updates_KW)

    @property
    def _images(self) -> Any:
        """The images; those of a prefetcher have a `buffer` and a `fork_lock`, which workers need."""
        return self._reference.population.images


def _unsupported_reason(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"it trains on the CPU and the device is {device}"
    return unavailable_reason()


def _shared_memory(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return zeros that processes forked later share; pages that are never written use no RAM."""
    memory = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
