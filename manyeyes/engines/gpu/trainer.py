"""Rounds that share captured steps: streams, buffers and graphs are made once, and a round is only launched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from manyeyes.components.losses import training_loss
from manyeyes.core.plan import RoundPlan
from manyeyes.core.state import ClientStates, CohortResult, RoundContext
from manyeyes.engines.base import compute_dtype, deterministic_kernels
from manyeyes.engines.gpu.buffers import PlanBuffers, PlanChunk
from manyeyes.engines.gpu.client_state import ClientStateTransfer
from manyeyes.engines.gpu.compiling import compiled, compiling
from manyeyes.engines.gpu.scheduling import Schedule, make_schedule
from manyeyes.engines.gpu.step import StepCompiler, StepFunctions, StepShape
from manyeyes.engines.gpu.stream import RoundBuffers, Stream, wait

if TYPE_CHECKING:
    from manyeyes.engines.gpu.engine import GpuEngine


class StreamTrainer:
    """Trains rounds of one capture key.

    Nothing else depends on the round that it is made for: the first round of a resumed run groups clients as any other.
    """

    def __init__(self, engine: GpuEngine, weights: Tensor, plan: RoundPlan, context: RoundContext) -> None:
        self.engine, self.key, self.device = engine, capture_key(plan, context), engine.setup.device
        self._has_phases = plan.has_phases
        for model in (engine.model, engine.plain_model):
            model.module.train()
        population, num_uniforms = engine.setup.population, engine.num_augment_uniforms
        num_streams, width, dtype = engine.num_streams, engine.width, compute_dtype(engine.precision)
        self.round_buffers = RoundBuffers(weights, engine.num_trainable, context)
        self.streams = [Stream(self.round_buffers, context, number, width, dtype) for number in range(num_streams)]
        batch_size = batch_size_of(plan)
        self.plan_buffers = PlanBuffers(population, self.device, num_streams, width, batch_size, num_uniforms)
        self.steps = StepCompiler(engine, self.plan_buffers, training_loss(context, population))
        self._step_functions: dict[StepShape, StepFunctions] = {}
        self._prefetched: tuple[RoundPlan, Schedule, list[PlanChunk]] | None = None

    def prefetch(self, plan: RoundPlan) -> None:
        """Pack a plan before its round, and send its first chunk to the device."""
        schedule, chunks = self._schedule(plan)
        packed = list(chunks)
        self.plan_buffers.send(packed[0])
        self._prefetched = plan, schedule, packed

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Launch a round and return the result; the first trainer calls `on_device_busy` while the device works."""
        if self._prefetched is not None and self._prefetched[0].clients == plan.clients:
            (_, schedule, packed), self._prefetched = self._prefetched, None
            chunks = iter(packed)
        else:
            schedule, chunks = self._schedule(plan)
        self.round_buffers.update(weights, context)
        with deterministic_kernels(self.engine.precision):
            first = next(chunks)
            self._capture_missing(schedule, first)
            for stream in self.streams:
                stream.total.zero_()
                stream.uploads = None
            transfer = ClientStateTransfer(self.engine.reference, self.round_buffers, context, client_states)
            results = self._launch(plan, chain([first], chunks), transfer)
            if self is self.engine.trainers[0]:
                self.engine.on_device_busy()
        return self._gather(plan, schedule, results, transfer)

    def _schedule(self, plan: RoundPlan) -> tuple[Schedule, Iterator[PlanChunk]]:
        """Return the schedule of a plan, and its chunks, each packed while the one before it runs."""
        engine, max_steps = self.engine, self.plan_buffers.max_steps
        schedule = make_schedule(plan, engine.num_streams, engine.width, engine.exact_batches, max_steps)
        return schedule, (self.plan_buffers.pack(plan, step_ranges) for step_ranges in schedule)

    def _capture_missing(self, schedule: Schedule, first: PlanChunk) -> None:
        """Compile, check and capture the steps that the round needs and no earlier round needed."""
        missing = {stream: _shapes_of(schedule, stream) - stream.functions.keys() for stream in self.streams}
        if not any(missing.values()):
            return
        if self.plan_buffers.stream is not None:  # it may be copying the first chunk
            torch.cuda.current_stream(self.device).wait_stream(self.plan_buffers.stream)
        for shape in sorted(set().union(*missing.values()) - self._step_functions.keys(), reverse=True):
            self._step_functions[shape] = self.steps.make(shape, self.streams[0])
        self.plan_buffers.upload(first, 0)  # over the examples that steps were tried with
        with compiling():
            for stream, shapes in missing.items():
                for shape in sorted(shapes, reverse=True):
                    for name, function in self._functions(stream, shape).items():
                        stream.capture(name, function)

    def _functions(self, stream: Stream, shape: StepShape) -> dict[Hashable, Callable[[], None]]:
        """Return what a stream runs, by name: a step of each shape, and the begin and end of groups of each width."""
        width, functions = shape[0], self._step_functions[shape]
        take_step, accumulate, reset = stream.step, stream.accumulate, stream.reset
        if self.engine.compiles:
            take_step, accumulate = compiled(take_step), compiled(accumulate)
            reset = compiled(reset) if width > 1 else reset
        is_active, phases, client_weights = (
            self.plan_buffers.columns[name][:, stream.number] for name in ("is_active", "phases", "client_weights")
        )
        results = self.plan_buffers.results[:, stream.number]

        def step() -> None:
            partial: tuple[Tensor, ...] = ()
            if self._has_phases:
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
        main = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        for stream in self.streams:
            wait(stream.stream, main)
        for chunk in chunks:
            half = self.plan_buffers.send(chunk)
            for stream in self.streams:
                wait(stream.stream, self.plan_buffers.stream)
            launches = {stream: self._launches(stream, plan, chunk, half, transfer) for stream in self.streams}
            with torch.cuda.stream(main):  # which is current again afterwards; None: no effect
                _run_in_turn(launches)
            for stream in self.streams:
                wait(main, stream.stream)
            results.append(self.plan_buffers.results_of(chunk, half))
            self.plan_buffers.free_events[half] = None if main is None else main.record_event()
        return results

    def _launches(
        self, stream: Stream, plan: RoundPlan, chunk: PlanChunk, half: int, transfer: ClientStateTransfer
    ) -> Iterator[None]:
        """Launch a stream's part of a chunk, step by step."""
        stream.cursors.fill_(half * self.plan_buffers.max_steps)
        for step_range in chunk.step_ranges[stream.number]:
            group = step_range.group
            clients = [plan.clients[index] for index in group.client_indices]
            if step_range.begins:
                stream.functions["begin", group.width]()
                transfer.load(stream, clients)
            for size in group.batch_sizes[step_range.first : step_range.last]:
                stream.functions[group.width, size]()
                yield
            if step_range.ends:
                transfer.store(stream, clients)
                stream.functions["end", group.width]()

    def _gather(
        self, plan: RoundPlan, schedule: Schedule, results: list[Tensor], transfer: ClientStateTransfer
    ) -> CohortResult:
        """Return the sums of the streams and each client's statistics, with the one wait of a round."""
        update_W = torch.stack([stream.total for stream in self.streams]).sum(0)
        uploads = [stream.uploads for stream in self.streams if stream.uploads is not None]
        groups = [r.group for chunk in schedule for stream in chunk for r in stream if r.ends]
        statistics_K3 = np.empty((len(plan.clients), 3))  # sum of losses, norm, accepted
        for group, group_statistics in zip(groups, torch.cat(results).cpu().numpy(), strict=True):
            statistics_K3[list(group.client_indices)] = group_statistics[: len(group.client_indices)]
        accepted_K = statistics_K3[:, 2] > 0
        accepted_ids = [plan.clients[k].client_id for k in np.flatnonzero(accepted_K)]
        return CohortResult(
            update_W=update_W,
            uploads_P=torch.stack(uploads).sum(0) if uploads else None,
            accepted_K=accepted_K,
            loss_K=statistics_K3[:, 0] / np.array([client.num_steps for client in plan.clients]),
            norm_K=statistics_K3[:, 1],
            client_states={k: transfer.new_states[k] for k in accepted_ids if k in transfer.new_states},
        )


def capture_key(plan: RoundPlan, context: RoundContext) -> tuple[object, ...]:
    """Return what buffers and captured steps depend on; rounds with another key need others."""
    return (
        context.client_optimizer,
        context.correction,
        context.correction_state is not None,
        id(context.personal_mask),
        context.correct_personal_layers,
        context.loss,
        plan.has_phases,
        batch_size_of(plan),
    )


def batch_size_of(plan: RoundPlan) -> int:
    """Return the size of a full batch."""
    return max(client.example_indices_SB.shape[1] for client in plan.clients)


def _run_in_turn(launches: dict[Stream, Iterator[None]]) -> None:
    """Launch a step of each stream in turn, until all are launched."""
    while launches:
        for stream, launch in list(launches.items()):
            if stream.stream is not None:  # much cheaper than a context for every launch
                torch.cuda.set_stream(stream.stream)
            if next(launch, "finished") == "finished":
                del launches[stream]


def _shapes_of(schedule: Schedule, stream: Stream) -> set[StepShape]:
    """Return the shapes of the steps that a stream runs in a round."""
    ranges = (step_range for chunk in schedule for step_range in chunk[stream.number])
    return {(step_range.group.width, size) for step_range in ranges for size in step_range.group.batch_sizes}
