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

from manyeyes.data.augment import Augment
from manyeyes.engine.compiling import compiled, compiling
from manyeyes.engine.keeping import Keeping
from manyeyes.engine.lane import Lane, Shared, lanes_in_turn
from manyeyes.engine.precision import arithmetic, number_type
from manyeyes.engine.program import Stretch, cut, make_groups
from manyeyes.engine.reference import Reference
from manyeyes.engine.sharing import share_out
from manyeyes.engine.stepping import Made, Shape, Steps
from manyeyes.engine.table import Piece, Table
from manyeyes.models.cuda import for_cuda
from manyeyes.models.flat import FlatModel
from manyeyes.models.habits import habits
from manyeyes.population import Population
from manyeyes.work import Aggregate, Clients, Personal, Plan, Work

Program = list[list[list[Stretch]]]  # of each piece of a round, of each lane
Named = tuple[int, int, tuple[int, ...]]  # a plan by its seed, its round and the keys of its clients


class Lanes:
    """`lanes` lanes of at most `width` clients side by side; agrees with the reference up to rounding."""

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Augment,
        device: torch.device,
        *,
        lanes: int,
        width: int,
        precision: str,
        compile: bool,
    ) -> None:
        self.reference = Reference(model, population, augment, device)
        self.trained, self.dice = model.trained, augment.dice
        self.exact = habits(model, *augment.shape(*population.image_shape[:2])).mixes
        assert not (self.exact and width > 1), "examples of clients side by side would share their statistics"
        cuda = device.type == "cuda"
        self.plain = FlatModel(copy.deepcopy(model.module))
        self.model = FlatModel(for_cuda(model.module, width > 1)) if cuda else self.plain
        self.population, self.augment, self.device = population, augment, device
        self.count, self.width, self.precision = lanes, width, precision
        self.dtype = number_type(precision)
        self.compile = compile
        self._kind: tuple[Any, ...] | None = None  # what the lanes were made for
        self._made: dict[Shape, Made] = {}
        self._ready: dict[Named, tuple[Program, list[Piece]]] = {}  # the next round
        self._others: dict[tuple[Any, ...], Lanes] = {}  # for work of other kinds
        self._another: Callable[[], Lanes] = lambda: Lanes(
            model, population, augment, device, lanes=lanes, width=width, precision=precision, compile=compile
        )
        self.meanwhile: Callable[[], None] = lambda: None  # what the host does while the device works

    def personal(self, personal: Personal) -> Tensor:
        return self.reference.personal(personal)

    def ahead(self, plan: Plan) -> None:
        """Pack a plan before its round, and send its first piece to the device."""
        if self._kind is not None and plan.clients:
            program = self._program(plan)
            pieces = [self.table.pack(plan, stretches) for stretches in program]
            self.table.send(pieces[0])
            self._ready = {_named(plan): (program, pieces)}

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate:
        batch = max(client.rows_SB.shape[1] for client in plan.clients)
        told = work.shared is not None
        kind = (work.local, work.correct, told, id(work.personal), work.tied, plan.alternates, batch)
        if self._kind not in (None, kind):
            if kind not in self._others:
                self._others[kind] = self._another()
            return self._others[kind].train(weights, plan, work, clients)
        if self._kind is None:
            self._settle(weights, plan, work, batch)
            self._kind = kind
        program, packed = self._ready.pop(_named(plan), (None, list[Piece]()))
        program = program or self._program(plan)
        pieces = iter(packed or (self.table.pack(plan, stretches) for stretches in program))  # each while others run
        self._tell(weights, work)
        with arithmetic(self.precision):
            first = next(pieces)
            self._prepare(program, first)
            keeping = Keeping(self.reference, self.shared, work, clients)
            notes = self._launch(plan, chain([first], pieces), keeping)
            self.meanwhile()
        return self._gather(plan, program, notes, keeping)

    def _settle(self, weights: Tensor, plan: Plan, work: Work, batch: int) -> None:
        """Make lanes and table for this kind of work; one round makes them for all that follow.

        Nothing depends on which round that is: the first one of a run that goes on must group clients as any other.
        """
        for model in (self.model, self.plain):
            model.module.train()
        number = weights.new_zeros
        self.shared = Shared(
            weights=weights.clone(),
            trained=self.trained,
            lr=number(1),
            bound=number(1),
            control=None if work.shared is None else work.shared.clone(),
            mask=None if work.personal is None else (~work.personal).to(weights.dtype),
            own=None if work.personal is None else work.personal.nonzero()[:, 0],
        )
        self.lanes = [Lane(self.shared, work, n, self.width, self.dtype) for n in range(self.count)]
        self.table = Table(self.population, self.device, self.count, self.width, batch, self.dice)
        full = batch if self.exact else 0  # exact batches end in as many sizes as there are clients
        self.steps = Steps(self.model, self.plain, self.augment, self.table, self.dtype, self.compile, full)
        self._captured = [set[Shape]() for _ in self.lanes]
        self._alternates = plan.alternates

    def _program(self, plan: Plan) -> Program:
        groups = make_groups(plan.clients, self.width, self.exact)
        shares = share_out([group.cost for group in groups], self.count)
        cuts = [cut([groups[place] for place in share], self.table.room) for share in shares]
        return [[lane or [] for lane in lanes] for lanes in zip_longest(*cuts)]

    def _tell(self, weights: Tensor, work: Work) -> None:
        """Copy what changes from round to round to where the lanes look."""
        self.shared.weights.copy_(weights)
        self.shared.lr.fill_(work.lr)
        self.shared.bound.fill_(work.bound)
        if self.shared.control is not None:
            assert work.shared is not None, "these lanes were made for a correction with server state"
            self.shared.control.copy_(work.shared)

    def _prepare(self, program: Program, first: Piece) -> None:
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

    def _functions(self, lane: Lane, shape: Shape) -> dict[Any, Callable[[], None]]:
        """What a lane does, by name: a step of each shape, and the begin and end of groups of each width."""
        width, made = shape[0], self._made[shape]
        ready: Callable[[Callable[..., Any]], Callable[..., Any]] = compiled if self.compile else lambda plain: plain
        descend, finish = ready(lane.descend), ready(lane.finish)
        begin = ready(lane.begin) if width > 1 else lane.begin
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

    def _launch(self, plan: Plan, pieces: Iterable[Piece], keeping: Keeping) -> list[Tensor]:
        """Send all steps to the device, and return how each client went, piece by piece and lane by lane.

        A piece is uploaded while the one before it runs; nothing waits for the device.
        """
        notes: list[Tensor] = []
        main = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        for lane in self.lanes:
            lane.follow(main)
        for piece in pieces:
            half = self.table.send(piece)
            for lane in self.lanes:
                lane.follow(self.table.stream)
            self._play(plan, piece, half, keeping)
            for lane in self.lanes:
                lane.lead(main)
            notes.append(self._notes(piece, half))
            self.table.over[half] = None if main is None else main.record_event()
        return notes

    def _play(self, plan: Plan, piece: Piece, half: int, keeping: Keeping) -> None:
        """Launch one piece, a step of each lane in turn."""
        busy = {lane: self._launches(lane, plan, piece, half, keeping) for lane in self.lanes}
        with lanes_in_turn(self.device) as turn_to:
            while busy:
                for lane, launch in list(busy.items()):
                    turn_to(lane)
                    if next(launch, "over") == "over":
                        del busy[lane]

    def _notes(self, piece: Piece, half: int) -> Tensor:
        """A copy of how the clients that ended in a piece went, lane after lane [groups, K, 3]."""
        first = half * self.table.room
        ended = [sum(stretch.ends for stretch in lane) for lane in piece.stretches]
        results = self.table.results[first : first + max(ended)].transpose(0, 1)
        return torch.cat([results[lane, :count] for lane, count in enumerate(ended)])

    def _launches(self, lane: Lane, plan: Plan, piece: Piece, half: int, keeping: Keeping) -> Iterator[None]:
        """What a lane does in a piece, step by step."""
        lane.places.fill_(half * self.table.room)
        for stretch in piece.stretches[lane.number]:
            group = stretch.group
            members = [plan.clients[place] for place in group.places]
            if stretch.begins:
                lane.run(("begin", group.width))
                keeping.resume(lane, members)
            for size in group.batches[stretch.first : stretch.last]:
                lane.run((group.width, size))
                yield
            if stretch.ends:
                keeping.take(lane, members)
                lane.run(("finish", group.width))

    def _gather(self, plan: Plan, program: Program, notes: list[Tensor], keeping: Keeping) -> Aggregate:
        """The sums of the lanes, and what is known of each client, with the one wait of a round."""
        total = torch.stack([lane.total for lane in self.lanes]).sum(0)
        reports = [lane.reports for lane in self.lanes if lane.reports is not None]
        places = [group.places for piece in program for lane in piece for group in (s.group for s in lane if s.ends)]
        found = torch.cat(notes).cpu().numpy()  # [groups, K, 3]
        results = np.empty((len(plan.clients), 3))
        for group, result_K3 in zip(places, found, strict=True):
            results[list(group)] = result_K3[: len(group)]
        kept_K = results[:, 2] > 0
        steps_K = np.array([client.steps for client in plan.clients])
        keeps = {
            c.key: keeping.keeps[c.key]
            for c, good in zip(plan.clients, kept_K, strict=True)
            if good and c.key in keeping.keeps
        }
        return Aggregate(
            total,
            torch.stack(reports).sum(0) if reports else None,
            kept_K,
            results[:, 0] / steps_K,
            results[:, 1],
            keeps,
        )


def _named(plan: Plan) -> Named:
    return plan.seed, plan.round, tuple(client.key for client in plan.clients)
