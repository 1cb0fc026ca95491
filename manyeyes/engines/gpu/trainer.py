"""Rounds of one kind of work: streams, buffers and captured steps are made once, and a round is only launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import ClientOptimizer, Correction, Loss
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.state import ClientStates, CohortResult, RoundContext
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import arithmetic, compute_dtype
from manyeyes.engines.client_step import training_loss
from manyeyes.engines.gpu.buffers import PlanBuffers, PlanChunk
from manyeyes.engines.gpu.client_state import ClientStateTransfer
from manyeyes.engines.gpu.compiling import compiled, compiling
from manyeyes.engines.gpu.scheduling import Schedule, make_schedule
from manyeyes.engines.gpu.step import StepCompiler, StepFunctions, StepShape
from manyeyes.engines.gpu.stream import RoundBuffers, Stream, stream_switcher
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel

PlanKey = tuple[int, int, tuple[int, ...]]  # a plan by its seed, its round and its clients


@dataclass(frozen=True)
class WorkKind:
    """What streams and captured steps are made for; a round of another kind needs others."""

    client_optimizer: ClientOptimizer
    correction: Correction | None
    has_correction_state: bool
    personal_mask_id: int
    correct_personal_layers: bool
    has_phases: bool
    batch_size: int
    loss: Loss | None

    @staticmethod
    def of(plan: RoundPlan, context: RoundContext) -> WorkKind:
        return WorkKind(
            client_optimizer=context.client_optimizer,
            correction=context.correction,
            has_correction_state=context.correction_state is not None,
            personal_mask_id=id(context.personal_mask),
            correct_personal_layers=context.correct_personal_layers,
            has_phases=plan.has_phases,
            batch_size=max(client.example_indices_SB.shape[1] for client in plan.clients),
            loss=context.loss,
        )


@dataclass(frozen=True, eq=False)
class GpuResources:
    """What the trainers of all kinds of work share."""

    reference: ReferenceEngine
    model: FlatModel  # with layers that are fast on this device
    plain_model: FlatModel
    population: Population
    preprocess: Preprocess
    device: torch.device
    num_streams: int
    width: int  # clients side by side in a stream
    precision: str
    compile: bool
    exact_batches: bool  # without padding


class StreamTrainer:
    """Trains rounds of one kind of work.

    Nothing depends on the round that it is made for: the first round of a resumed run must group clients as any other.
    """

    def __init__(self, resources: GpuResources, weights: Tensor, kind: WorkKind, context: RoundContext) -> None:
        self.resources, self.kind = resources, kind
        for model in (resources.model, resources.plain_model):
            model.module.train()
        num_trainable, num_uniforms = resources.model.num_trainable, resources.preprocess.num_uniforms
        num_streams, width, dtype = resources.num_streams, resources.width, compute_dtype(resources.precision)
        self.round_buffers = RoundBuffers.of(weights, num_trainable, context)
        self.streams = [Stream(self.round_buffers, context, n, width, dtype) for n in range(num_streams)]
        self.plan_buffers = PlanBuffers(
            resources.population, resources.device, num_streams, width, kind.batch_size, num_uniforms
        )
        self.loss_function = training_loss(context, resources.population)
        self.steps = StepCompiler(
            resources.model,
            resources.plain_model,
            resources.preprocess,
            self.plan_buffers,
            self.loss_function,
            dtype,
            resources.compile,
            # the last of a client's exact batches has any size
            only_batch_size=kind.batch_size if resources.exact_batches else 0,
        )
        self._step_functions: dict[StepShape, StepFunctions] = {}
        self._captured = [set[StepShape]() for _ in self.streams]
        self._prefetched: dict[PlanKey, tuple[Schedule, list[PlanChunk]]] = {}  # the next round

    def prefetch(self, plan: RoundPlan) -> None:
        """Pack a plan before its round, and send its first chunk to the device."""
        schedule = self._schedule(plan)
        chunks = [self.plan_buffers.pack(plan, step_ranges) for step_ranges in schedule]
        self.plan_buffers.send(chunks[0])
        self._prefetched = {_plan_key(plan): (schedule, chunks)}

    def train(
        self,
        weights: Tensor,
        plan: RoundPlan,
        context: RoundContext,
        client_states: ClientStates,
        on_device_busy: Callable[[], None],
    ) -> CohortResult:
        """Launch a round, call `on_device_busy` while the device works, and return the result."""
        schedule, packed = self._prefetched.pop(_plan_key(plan), (None, list[PlanChunk]()))
        schedule = schedule or self._schedule(plan)
        # each chunk is packed while the one before it runs
        chunks = iter(packed or (self.plan_buffers.pack(plan, step_ranges) for step_ranges in schedule))
        self.round_buffers.update(weights, context)
        with arithmetic(self.resources.precision):
            first = next(chunks)
            self._prepare(schedule, first)
            transfer = ClientStateTransfer(
                self.resources.reference, self.round_buffers, context, client_states, self.loss_function
            )
            results = self._launch(plan, chain([first], chunks), transfer)
            on_device_busy()
        return self._gather(plan, schedule, results, transfer)

    def _schedule(self, plan: RoundPlan) -> Schedule:
        resources = self.resources
        return make_schedule(
            plan, resources.num_streams, resources.width, resources.exact_batches, self.plan_buffers.max_steps
        )

    def _prepare(self, schedule: Schedule, first: PlanChunk) -> None:
        """Compile, check and capture every shape that the round needs and no earlier round needed."""
        needed = [
            {
                (step_range.group.width, size)
                for chunk in schedule
                for step_range in chunk[stream.number]
                for size in step_range.group.batch_sizes
            }
            for stream in self.streams
        ]
        missing = [shapes - captured for shapes, captured in zip(needed, self._captured, strict=True)]
        if any(missing):
            self._capture(missing, first)
        for stream in self.streams:
            stream.total.zero_()
            stream.uploads = None

    def _capture(self, missing: list[set[StepShape]], first: PlanChunk) -> None:
        """Make the missing shapes of each stream."""
        if self.plan_buffers.stream is not None:  # it may be copying the first chunk
            torch.cuda.current_stream(self.resources.device).wait_stream(self.plan_buffers.stream)
        for shape in sorted(set().union(*missing) - set(self._step_functions), reverse=True):
            self._step_functions[shape] = self.steps.make(shape, self.streams[0])
        self.plan_buffers.upload(first, 0)  # over the examples that steps were tried with
        with compiling():
            for stream, shapes in zip(self.streams, missing, strict=True):
                for shape in sorted(shapes, reverse=True):
                    for name, function in self._functions(stream, shape).items():
                        stream.capture(name, function)
                self._captured[stream.number] |= shapes

    def _functions(self, stream: Stream, shape: StepShape) -> dict[Any, Callable[[], None]]:
        """Return what a stream runs, by name: a step of each shape, and the begin and end of groups of each width."""
        width, functions = shape[0], self._step_functions[shape]
        prepare: Callable[[Callable[..., Any]], Callable[..., Any]] = (
            compiled if self.resources.compile else lambda function: function
        )
        take_step, accumulate = prepare(stream.step), prepare(stream.accumulate)
        reset = prepare(stream.reset) if width > 1 else stream.reset
        is_active, phases, client_weights = (
            self.plan_buffers.columns[name][:, stream.number] for name in ("is_active", "phases", "client_weights")
        )
        results = self.plan_buffers.results[:, stream.number]

        def step() -> None:
            partial: tuple[Tensor, ...] = ()
            if self.kind.has_phases:
                phases_K = phases.index_select(0, stream.step_index)[0, :width]
                partial = phases_K, stream.statistics[:width].clone()
            loss_K, gradient = self.steps.gradient(stream, shape, functions)
            take_step(gradient, loss_K, is_active.index_select(0, stream.step_index)[0, :width], *partial)

        return {
            shape: step,
            ("begin", width): lambda: reset(width),
            ("end", width): lambda: accumulate(width, client_weights, results),
        }

    def _launch(self, plan: RoundPlan, chunks: Iterable[PlanChunk], transfer: ClientStateTransfer) -> list[Tensor]:
        """Send all steps to the device, and return each client's statistics, chunk by chunk and stream by stream.

        A chunk is uploaded while the one before it runs; nothing waits for the device.
        """
        results: list[Tensor] = []
        device = self.resources.device
        main = torch.cuda.current_stream(device) if device.type == "cuda" else None
        for stream in self.streams:
            stream.wait_for(main)
        for chunk in chunks:
            half = self.plan_buffers.send(chunk)
            for stream in self.streams:
                stream.wait_for(self.plan_buffers.stream)
            self._launch_chunk(plan, chunk, half, transfer)
            for stream in self.streams:
                stream.signal(main)
            results.append(self._results(chunk, half))
            self.plan_buffers.free_events[half] = None if main is None else main.record_event()
        return results

    def _launch_chunk(self, plan: RoundPlan, chunk: PlanChunk, half: int, transfer: ClientStateTransfer) -> None:
        """Launch one chunk, a step of each stream in turn."""
        launches = {stream: self._launches(stream, plan, chunk, half, transfer) for stream in self.streams}
        with stream_switcher(self.resources.device) as switch_to:
            while launches:
                for stream, launch in list(launches.items()):
                    switch_to(stream)
                    if next(launch, "finished") == "finished":
                        del launches[stream]

    def _launches(
        self, stream: Stream, plan: RoundPlan, chunk: PlanChunk, half: int, transfer: ClientStateTransfer
    ) -> Iterator[None]:
        """Launch a stream's part of a chunk, step by step."""
        stream.cursors.fill_(half * self.plan_buffers.max_steps)
        for step_range in chunk.step_ranges[stream.number]:
            group = step_range.group
            clients = [plan.clients[index] for index in group.client_indices]
            if step_range.begins:
                stream.run(("begin", group.width))
                transfer.load(stream, clients)
            for size in group.batch_sizes[step_range.first : step_range.last]:
                stream.run((group.width, size))
                yield
            if step_range.ends:
                transfer.store(stream, clients)
                stream.run(("end", group.width))

    def _results(self, chunk: PlanChunk, half: int) -> Tensor:
        """Return a copy of the statistics of the clients that ended in a chunk, stream by stream [groups, K, 3]."""
        first = half * self.plan_buffers.max_steps
        num_ended = [sum(step_range.ends for step_range in stream) for stream in chunk.step_ranges]
        results = self.plan_buffers.results[first : first + max(num_ended)].transpose(0, 1)
        return torch.cat([results[stream, :count] for stream, count in enumerate(num_ended)])

    def _gather(
        self, plan: RoundPlan, schedule: Schedule, results: list[Tensor], transfer: ClientStateTransfer
    ) -> CohortResult:
        """Return the sums of the streams and each client's statistics, with the one wait of a round."""
        update_W = torch.stack([stream.total for stream in self.streams]).sum(0)
        uploads = [stream.uploads for stream in self.streams if stream.uploads is not None]
        groups = [r.group for chunk in schedule for stream in chunk for r in stream if r.ends]
        statistics_GK3 = torch.cat(results).cpu().numpy()
        statistics = np.empty((len(plan.clients), 3))
        for group, statistics_K3 in zip(groups, statistics_GK3, strict=True):
            statistics[list(group.client_indices)] = statistics_K3[: len(group.client_indices)]
        accepted_K = statistics[:, 2] > 0
        num_steps_K = np.array([client.num_steps for client in plan.clients])
        new_states = transfer.new_states
        return CohortResult(
            update_W=update_W,
            uploads_P=torch.stack(uploads).sum(0) if uploads else None,
            accepted_K=accepted_K,
            loss_K=statistics[:, 0] / num_steps_K,
            norm_K=statistics[:, 1],
            client_states={
                client.client_id: new_states[client.client_id]
                for client, is_accepted in zip(plan.clients, accepted_K, strict=True)
                if is_accepted and client.client_id in new_states
            },
        )


def _plan_key(plan: RoundPlan) -> PlanKey:
    return plan.seed, plan.round, tuple(client.client_id for client in plan.clients)
