"""The fast engine: clients in lanes that run at the same time, and side by side within a lane.

`lanes` is several lanes of one client each, for models that fill a good part of a GPU; `vector` is two lanes of many
clients through `torch.func.vmap`, for small models. A round is planned by the host, uploaded once, and then only
launched: compiled steps, captured as CUDA graphs, find their rows through a cursor on the device. On a CPU the same
code runs without streams and graphs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import PersonalLayers
from manyeyes.core.engine import CohortResult, RoundContext
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.state import ClientStates
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.compiling import compiled, compiling
from manyeyes.engines.gpu.buffers import PlanBuffers, PlanChunk
from manyeyes.engines.gpu.client_state import ClientStateTransfer
from manyeyes.engines.gpu.scheduling import StepRange, cut, make_groups
from manyeyes.engines.gpu.step import CompiledStep, Steps, StepShape
from manyeyes.engines.gpu.stream import RoundBuffers, Stream, make_streams
from manyeyes.engines.load_balancing import balance
from manyeyes.engines.precision import arithmetic, number_type
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import probe

Program = list[list[list[StepRange]]]  # of each piece of a round, of each lane
Named = tuple[int, int, tuple[int, ...]]  # a plan by its seed, its round and the keys of its clients


class GpuEngine:
    """`lanes` lanes of at most `width` clients side by side; agrees with the reference up to rounding."""

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Preprocess,
        device: torch.device,
        *,
        num_streams: int,
        width: int,
        precision: str,
        compile: bool,
    ) -> None:
        self.reference = ReferenceEngine(model, population, augment, device)
        self.num_trainable, self.num_augment_uniforms = model.num_trainable, augment.num_uniforms
        self.exact = probe(model, *augment.shape(*population.image_shape[:2])).mixes_batch
        assert not (self.exact and width > 1), "examples of clients side by side would share their statistics"
        cuda = device.type == "cuda"
        self.plain = FlatModel(copy.deepcopy(model.module))
        self.model = FlatModel(optimize_for_cuda(model.module, width > 1)) if cuda else self.plain
        self.population, self.augment, self.device = population, augment, device
        self.count, self.width, self.precision = num_streams, width, precision
        self.dtype = number_type(precision)
        self.compile = compile
        self._kind: tuple[Any, ...] | None = None  # what the lanes were made for
        self._made: dict[StepShape, CompiledStep] = {}
        self._ready: dict[Named, tuple[Program, list[PlanChunk]]] = {}  # the next round
        self._others: dict[tuple[Any, ...], GpuEngine] = {}  # for work of other kinds
        self._another: Callable[[], GpuEngine] = lambda: GpuEngine(
            model,
            population,
            augment,
            device,
            num_streams=num_streams,
            width=width,
            precision=precision,
            compile=compile,
        )
        self.on_device_busy: Callable[[], None] = lambda: None  # what the host does while the device works

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self.reference.personal_mask(personal_layers)

    def prefetch(self, plan: RoundPlan) -> None:
        """Pack a plan before its round, and send its first piece to the device."""
        if self._kind is not None and plan.clients:
            program = self._program(plan)
            pieces = [self.table.pack(plan, stretches) for stretches in program]
            self.table.send(pieces[0])
            self._ready = {_named(plan): (program, pieces)}

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        batch = max(client.example_indices_SB.shape[1] for client in plan.clients)
        told = context.correction_state is not None
        kind = (
            context.client_optimizer,
            context.correction,
            told,
            id(context.personal_mask),
            context.correct_personal_layers,
            plan.has_phases,
            batch,
        )
        if self._kind not in (None, kind):
            if kind not in self._others:
                self._others[kind] = self._another()
            return self._others[kind].train(weights, plan, context, client_states)
        if self._kind is None:
            self._settle(weights, plan, context, batch)
            self._kind = kind
        program, packed = self._ready.pop(_named(plan), (None, list[PlanChunk]()))
        program = program or self._program(plan)
        pieces = iter(packed or (self.table.pack(plan, stretches) for stretches in program))  # each while others run
        self._tell(weights, context)
        with arithmetic(self.precision):
            first = next(pieces)
            self._prepare(program, first)
            keeping = ClientStateTransfer(self.reference, self.shared, context, client_states)
            notes = self._launch(plan, chain([first], pieces), keeping)
            self.on_device_busy()
        return self._gather(plan, program, notes, keeping)

    def _settle(self, weights: Tensor, plan: RoundPlan, work: RoundContext, batch: int) -> None:
        """Make lanes and table for this kind of work; one round makes them for all that follow.

        Nothing depends on which round that is: the first one of a run that goes on must group clients as any other.
        """
        for model in (self.model, self.plain):
            model.module.train()
        number = weights.new_zeros
        self.shared = RoundBuffers(
            weights=weights.clone(),
            num_trainable=self.num_trainable,
            lr=number(1),
            clipping_norm=number(1),
            control=None if work.correction_state is None else work.correction_state.clone(),
            mask=None if work.personal_mask is None else (~work.personal_mask).to(weights.dtype),
            personal_indices=None if work.personal_mask is None else work.personal_mask.nonzero()[:, 0],
        )
        self.lanes = [Stream(self.shared, work, n, self.width, self.dtype) for n in range(self.count)]
        self.table = PlanBuffers(self.population, self.device, self.count, self.width, batch, self.num_augment_uniforms)
        full = batch if self.exact else 0  # exact batches end in as many sizes as there are clients
        self.steps = Steps(self.model, self.plain, self.augment, self.table, self.dtype, self.compile, full)
        self._captured = [set[StepShape]() for _ in self.lanes]
        self._alternates = plan.has_phases

    def _program(self, plan: RoundPlan) -> Program:
        groups = make_groups(plan.clients, self.width, self.exact)
        shares = balance([group.cost for group in groups], self.count)
        cuts = [cut([groups[place] for place in share], self.table.room) for share in shares]
        return [[lane or [] for lane in lanes] for lanes in zip_longest(*cuts)]

    def _tell(self, weights: Tensor, work: RoundContext) -> None:
        """Copy what changes from round to round to where the lanes look."""
        self.shared.weights.copy_(weights)
        self.shared.lr.fill_(work.lr)
        self.shared.clipping_norm.fill_(work.clipping_norm)
        if self.shared.control is not None:
            assert work.correction_state is not None, "these lanes were made for a correction with server state"
            self.shared.control.copy_(work.correction_state)

    def _prepare(self, program: Program, first: PlanChunk) -> None:
        """Compile, check and capture every shape that the round needs and no round before it needed."""
        needs = [
            {(s.group.width, size) for piece in program for s in piece[lane.number] for size in s.group.batches}
            for lane in self.lanes
        ]
        missing = [shapes - made for shapes, made in zip(needs, self._captured, strict=True)]
        if any(missing):
            if self.table.stream is not None:  # which may be copying the first piece
                torch.cuda.current_stream(self.device).wait_stream(self.table.stream)
            for shape in sorted(set().union(*missing) - set(self._made), reverse=True):
                self._made[shape] = self.steps.make(shape, self.lanes[0])
            self.table.upload(first, 0)  # where it was, or a copy of it, in the place of what steps were tried with
            with compiling():
                for lane, shapes in zip(self.lanes, missing, strict=True):
                    for shape in sorted(shapes, reverse=True):
                        for name, function in self._functions(lane, shape).items():
                            lane.capture(name, function)
                    self._captured[lane.number] |= shapes
        for lane in self.lanes:
            lane.total.zero_()
            lane.reports = None

    def _functions(self, lane: Stream, shape: StepShape) -> dict[Any, Callable[[], None]]:
        """What a lane does, by name: a step of each shape, and the begin and end of groups of each width."""
        width, made = shape[0], self._made[shape]
        ready: Callable[[Callable[..., Any]], Callable[..., Any]] = compiled if self.compile else lambda plain: plain
        descend, finish = ready(lane.step), ready(lane.accumulate)
        begin = ready(lane.reset) if width > 1 else lane.reset
        active, only, share = (self.table.columns[name][:, lane.number] for name in ("active", "only", "share"))
        results = self.table.results[:, lane.number]

        def step() -> None:
            parts: tuple[Tensor, ...] = ()
            if self._alternates:
                parts = only.index_select(0, lane.cursor)[0, :width], lane.statistics[:width].clone()
            loss_K, gradient = self.steps.gradient(lane, shape, made)
            descend(gradient, loss_K, active.index_select(0, lane.cursor)[0, :width], *parts)

        return {
            shape: step,
            ("begin", width): lambda: begin(width),
            ("finish", width): lambda: finish(width, share, results),
        }

    def _launch(self, plan: RoundPlan, pieces: Iterable[PlanChunk], keeping: ClientStateTransfer) -> list[Tensor]:
        """Send all steps to the device, and return how each client went, piece by piece and lane by lane.

        A piece is uploaded while the one before it runs; nothing waits for the device.
        """
        notes: list[Tensor] = []
        main = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        for lane in self.lanes:
            lane.wait_for(main)
        for piece in pieces:
            half = self.table.send(piece)
            for lane in self.lanes:
                lane.wait_for(self.table.stream)
            self._play(plan, piece, half, keeping)
            for lane in self.lanes:
                lane.signal(main)
            notes.append(self._notes(piece, half))
            self.table.over[half] = None if main is None else main.record_event()
        return notes

    def _play(self, plan: RoundPlan, piece: PlanChunk, half: int, keeping: ClientStateTransfer) -> None:
        """Launch one piece, a step of each lane in turn."""
        busy = {lane: self._launches(lane, plan, piece, half, keeping) for lane in self.lanes}
        with make_streams(self.device) as turn_to:
            while busy:
                for lane, launch in list(busy.items()):
                    turn_to(lane)
                    if next(launch, "over") == "over":
                        del busy[lane]

    def _notes(self, piece: PlanChunk, half: int) -> Tensor:
        """A copy of how the clients that ended in a piece went, lane after lane [groups, K, 3]."""
        first = half * self.table.room
        ended = [sum(stretch.ends for stretch in lane) for lane in piece.step_ranges]
        results = self.table.results[first : first + max(ended)].transpose(0, 1)
        return torch.cat([results[lane, :count] for lane, count in enumerate(ended)])

    def _launches(
        self, lane: Stream, plan: RoundPlan, piece: PlanChunk, half: int, keeping: ClientStateTransfer
    ) -> Iterator[None]:
        """What a lane does in a piece, step by step."""
        lane.cursors.fill_(half * self.table.room)
        for stretch in piece.step_ranges[lane.number]:
            group = stretch.group
            members = [plan.clients[place] for place in group.client_indices]
            if stretch.begins:
                lane.run(("begin", group.width))
                keeping.load(lane, members)
            for size in group.batches[stretch.first : stretch.last]:
                lane.run((group.width, size))
                yield
            if stretch.ends:
                keeping.store(lane, members)
                lane.run(("finish", group.width))

    def _gather(
        self, plan: RoundPlan, program: Program, notes: list[Tensor], keeping: ClientStateTransfer
    ) -> CohortResult:
        """The sums of the lanes, and what is known of each client, with the one wait of a round."""
        total = torch.stack([lane.total for lane in self.lanes]).sum(0)
        reports = [lane.reports for lane in self.lanes if lane.reports is not None]
        places = [
            group.client_indices for piece in program for lane in piece for group in (s.group for s in lane if s.ends)
        ]
        found = torch.cat(notes).cpu().numpy()  # [groups, K, 3]
        results = np.empty((len(plan.clients), 3))
        for group, result_K3 in zip(places, found, strict=True):
            results[list(group)] = result_K3[: len(group)]
        kept_K = results[:, 2] > 0
        steps_K = np.array([client.num_steps for client in plan.clients])
        keeps = {
            c.client_id: keeping.keeps[c.client_id]
            for c, good in zip(plan.clients, kept_K, strict=True)
            if good and c.client_id in keeping.keeps
        }
        return CohortResult(
            total,
            torch.stack(reports).sum(0) if reports else None,
            kept_K,
            results[:, 0] / steps_K,
            results[:, 1],
            keeps,
        )


def _named(plan: RoundPlan) -> Named:
    return plan.seed, plan.round, tuple(client.client_id for client in plan.clients)
