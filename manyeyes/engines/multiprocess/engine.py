"""The multiprocess engine: a round's clients are divided among processes of one thread each, and their sums are added.

On a CPU, processes of one thread are faster than the threads of one process: they wait for each other once per round,
not at every layer.
"""

import mmap
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan
from manyeyes.core.registry import register
from manyeyes.core.state import ClientStates, CohortResult, RoundContext
from manyeyes.engines.base import EngineBase, EngineSetup, merge_results
from manyeyes.engines.images import PrefetchBuffer
from manyeyes.engines.load_balancing import balance_clients
from manyeyes.engines.multiprocess.worker import Worker, cores, pickle_error, serialize, unsupported_machine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.models.flat import FlatModel

SENT_SLOTS = ("client_optimizer", "correction", "compressor", "personal_model", "loss")  # what workers use of a round
MAX_WORKER_DEATHS = 3  # of the workers of one shard of a round, before the run ends
SPARE_CLIENTS_FRACTION = 1 / 4  # of memory for clients' updates: random sampling may select more next round
IN_SHARED_MEMORY = torch.empty(0)  # stands for a tensor that is in shared memory


# a worker's shard of a round, with the indices of its clients in the plan of the round
Task = tuple[RoundPlan, RoundContext, ClientStates, PrefetchBuffer | None, list[int]]


@register("engine", "multiprocess")
class MultiprocessEngine(EngineBase):
    """The reference engine in several worker processes, by default one per core.

    A process is started when it is first needed. One that dies is replaced, and its shard of the round is run again.
    """

    name = "multiprocess"

    def __init__(self, setup: EngineSetup) -> None:
        if reason := unsupported_machine(setup.device):
            raise ValueError(f"engine=multiprocess does not support {reason}: use engine=reference.")
        super().__init__(setup)
        model = FlatModel(optimize_for_cpu(setup.model.module))
        self._reference = ReferenceEngine(replace(setup, model=model))
        self.precision, self._prefetcher = self._reference.precision, setup.prefetcher
        num_workers, dtype = setup.options.workers or cores(), model.read().dtype
        self._weights = _shared_memory(dtype, model.num_shared)
        self._correction_state = _shared_memory(dtype, model.num_trainable)
        self._update_sums = _shared_memory(dtype, num_workers, model.num_shared)
        self._upload_sums = _shared_memory(dtype, num_workers, model.num_trainable)
        self._updates_KW = torch.empty(0, model.num_shared, dtype=dtype)  # of each client, where they are kept
        self._workers: dict[int, Worker] = {}

    @classmethod
    def incompatibility(cls, algorithm: Algorithm, setup: EngineSetup) -> str | None:
        if reason := unsupported_machine(setup.device):
            return reason
        for slot in SENT_SLOTS:
            if reason := pickle_error(getattr(algorithm, slot)):
                return f"this {slot}, which cannot be sent to its workers ({reason})"
        return None

    @classmethod
    def is_recommended(cls, setup: EngineSetup) -> bool:
        """Return whether several processes pay: alone, and for rounds that take longer than sending them."""
        return setup.dist.size == 1 and not setup.has_short_rounds  # else each process of torchrun is what a worker is

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients, and sum what the finite ones send; the same bits with the same number of workers."""
        self._weights.copy_(weights)
        if context.correction_state is not None:
            self._correction_state.copy_(context.correction_state)
        if context.keep_client_updates and len(plan.clients) > len(self._updates_KW):
            self.close()  # processes that were forked before do not see the new memory
            capacity = len(plan.clients) + int(len(plan.clients) * SPARE_CLIENTS_FRACTION)
            self._updates_KW = _shared_memory(self._weights.dtype, capacity, len(self._weights))
        shards = [indices for indices in balance_clients(plan.clients, len(self._update_sums)) if indices]
        tasks = [self._task(plan, indices, context, client_states) for indices in shards]
        try:
            for number, task in enumerate(tasks):
                self._send(number, task)
            results = [self._receive(number, task, plan.round) for number, task in enumerate(tasks)]
        except BaseException:  # the results of the other workers are not needed
            self.close()
            raise
        merged = merge_results(weights, plan, zip(shards, results, strict=True))
        if not context.keep_client_updates:
            return merged
        return replace(merged, updates_KW=self._updates_KW[: len(plan.clients)].clone())

    def close(self) -> None:
        """End the processes; the next `train` starts new ones."""
        while self._workers:
            _, worker = self._workers.popitem()
            worker.stop()

    def _task(self, plan: RoundPlan, indices: list[int], context: RoundContext, client_states: ClientStates) -> bytes:
        """Return the message for the worker that trains the clients of these indices."""
        clients = tuple(plan.clients[index] for index in indices)
        if context.correction_state is not None:
            context = replace(context, correction_state=IN_SHARED_MEMORY)
        states = {c.client_id: client_states[c.client_id] for c in clients if c.client_id in client_states}
        prefetch_buffer = None if self._prefetcher is None else self._prefetcher.buffer
        return serialize((replace(plan, clients=clients), context, states, prefetch_buffer, indices))

    def _send(self, number: int, task: bytes) -> None:
        if number not in self._workers:
            with nullcontext() if self._prefetcher is None else self._prefetcher.fork_lock:
                self._workers[number] = Worker(partial(self._train_shard, number), self._workers.values())
        self._workers[number].send(task)

    def _receive(self, number: int, task: bytes, round: int) -> CohortResult:
        """Return a worker's shard of the round; one that dies is replaced and given its task again."""
        for death in range(MAX_WORKER_DEATHS):
            result: CohortResult | None = self._workers[number].receive()
            if result is not None:
                uploads_P = None if result.uploads_P is None else self._upload_sums[number]
                return replace(result, update_W=self._update_sums[number], uploads_P=uploads_P)
            cause = self._workers.pop(number).stop()
            if death + 1 < MAX_WORKER_DEATHS:
                print(f"round {round + 1}: worker {number + 1} died ({cause}) and is replaced", file=sys.stderr)
                self._send(number, task)
        deaths = f"worker {number + 1} died {MAX_WORKER_DEATHS} times in round {round + 1} ({cause})"
        raise RuntimeError(f"{deaths}, perhaps for lack of memory: set engine.workers or algorithm.batch_size lower.")

    def _train_shard(self, number: int, task: Task) -> CohortResult:
        """Train a shard of the round, in a worker: its sums go into its own row of the shared memory."""
        plan, context, client_states, prefetch_buffer, client_indices = task
        if self._prefetcher is not None:
            self._prefetcher.buffer = prefetch_buffer
        if context.correction_state is not None:
            context = replace(context, correction_state=self._correction_state)
        result = self._reference.train(self._weights, plan, context, client_states)
        self._update_sums[number] = result.update_W
        if result.uploads_P is not None:
            self._upload_sums[number] = result.uploads_P
        if result.updates_KW is not None:
            self._updates_KW[client_indices] = result.updates_KW
        return replace(
            result,
            update_W=IN_SHARED_MEMORY,
            uploads_P=None if result.uploads_P is None else IN_SHARED_MEMORY,
            updates_KW=None,
        )


def _shared_memory(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return zeros that processes forked later share; pages that are never written use no RAM."""
    memory = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
