"""A step of clients side by side: from the table to images, losses and gradients, compiled once that is found right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.batch import losses, weighted_mean
from manyeyes.engines.compiling import compiled, compiling, first_bad_gradient
from manyeyes.engines.gpu.buffers import PlanBuffers
from manyeyes.engines.gpu.scheduling import Group, StepRange
from manyeyes.engines.gpu.stream import Stream
from manyeyes.engines.precision import arithmetic
from manyeyes.models.flat import FlatModel

StepShape = tuple[int, int]  # clients side by side, examples of each
StepInputs = tuple[Tensor, ...]  # what is trained, of clients side by side as `FlatModel.pieces` says


@dataclass(frozen=True)
class CompiledStep:
    """The two functions of a step. Apart, the first is computed once for each pixel and not once for each use."""

    preprocess: Callable[..., Tensor]  # from the table to images
    loss: Callable[..., Tensor]  # from images to losses


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of every shape for one kind of work; `dtype` is what the model computes in."""

    model: FlatModel  # in the form that is fast here
    plain: FlatModel  # as it was given: the same function of the same numbers
    augment: Preprocess
    table: PlanBuffers
    dtype: torch.dtype
    compile: bool
    full: int = 0  # compile batches of this size alone; 0: of every size

    def gradient(self, lane: Stream, shape: StepShape, made: CompiledStep) -> tuple[Tensor, StepInputs]:
        """The loss of each client's next batch, and its gradient, in pieces [K, ...]."""
        width = shape[0]
        sizes = [sum(lengths) for lengths in self.model.pieces] if width > 1 else [self.model.num_trainable]
        theta = tuple(piece.detach().requires_grad_() for piece in lane.copy[:width].split(sizes, 1))
        columns = {name: column[:, lane.number] for name, column in self.table.columns.items()}
        images = made.preprocess(lane.cursor, self.table.pictures, columns)
        loss_K = made.loss(theta, lane.statistics[:width], images, lane.cursor, columns)
        return loss_K.detach(), torch.autograd.grad(loss_K, theta, torch.ones_like(loss_K))

    def _whole(self, lane: Stream, shape: StepShape, made: CompiledStep) -> Tensor:
        """The gradient [K, P]."""
        return torch.cat(self.gradient(lane, shape, made)[1], 1).float()

    def _made(self, shape: StepShape, model: FlatModel, dtype: torch.dtype) -> CompiledStep:
        """What K batches look like and lose, as functions of what is in the table at the cursor."""
        width, batch = shape

        def at(cursor: Tensor, column: Tensor) -> Tensor:
            return column.index_select(0, cursor)[0, :width]

        def look(cursor: Tensor, pictures: Tensor, columns: dict[str, Tensor]) -> Tensor:
            rows, dice = (at(cursor, columns[name])[:, :batch].flatten(0, 1) for name in ("rows", "dice"))
            images = self.augment.augment(pictures[rows], dice if dice.shape[-1] else None)
            return model.to_memory_format(images).to(dtype).unflatten(0, (width, batch))

        def of_one(
            theta: Tensor | StepInputs,
            statistics: Tensor,
            images: Tensor,
            targets: Tensor,
            weights: Tensor,
            seed: Tensor,
        ) -> Tensor:
            outputs = model(theta, statistics, images, seed).float()
            return weighted_mean(losses(outputs, targets), weights)

        def loss(
            theta_K: StepInputs, statistics_KS: Tensor, images: Tensor, cursor: Tensor, columns: dict[str, Tensor]
        ) -> Tensor:
            targets, weights = (at(cursor, columns[name])[:, :batch] for name in ("targets", "weights"))
            targets = targets.float() if targets.dim() == 3 else targets
            several = (statistics_KS, images, targets, weights, at(cursor, columns["seeds"]))
            if width > 1:
                return vmap(of_one)(theta_K, *several)
            return of_one(*(one.squeeze(0) for one in (*theta_K, *several)))[None]

        return CompiledStep(look, loss)

    def make(self, shape: StepShape, lane: Stream) -> CompiledStep:
        """The compiled step, if every parameter's gradient is what the plain model gives; else the plain model's."""
        fast = self._made(shape, self.model, self.dtype)
        if not self.compile or self.full not in (0, shape[1]):
            return fast
        fast = CompiledStep(compiled(fast.preprocess), compiled(fast.loss))
        plain = self._made(shape, self.plain, self.dtype)
        self._begin(lane, shape)
        statistics = lane.statistics.clone()
        try:
            with compiling(f"a step of {shape[0]} x {shape[1]} images"):
                found = self._whole(lane, shape, fast)
        except Exception as error:  # whatever a compiler fails with, the work can go on
            print(f"a step cannot be compiled and runs uncompiled: {str(error).splitlines()[0]}", file=sys.stderr)
            return plain
        lane.statistics.copy_(statistics)
        same = self._whole(lane, shape, plain)
        exact = self._exact(lane, shape)
        lane.statistics.copy_(statistics)
        names = {name: int(np.prod(size)) for name, size in self.model.trained_shapes.items()}
        wrong = first_bad_gradient(names, found, same, exact)
        if wrong is None:
            return fast
        print(
            f"the compiled gradient of {wrong[0]} is {wrong[1]:.1f} times as far off as it may be in batches of "
            f"{shape[1]}: these run uncompiled",
            file=sys.stderr,
        )
        return plain

    def _begin(self, lane: Stream, shape: StepShape) -> None:
        """The lane at the model's own weights and at the first examples of all.

        What a step is tried with depends on no round, so that a run that goes on is compiled as it was before.
        """
        width, batch = shape
        plan = RoundPlan(seed=0, round=0, clients=tuple(self._client(k * batch, batch) for k in range(width)))
        step = StepRange(Group(tuple(range(width)), width, (batch,)), first=0, last=1)
        self.table.upload(self.table.pack(plan, [[step], *([] for _ in range(self.table.lanes - 1))]), half=0)
        told = lane.buffers.weights.clone()
        lane.buffers.weights.copy_(self.model.read())
        lane.reset(width)
        lane.buffers.weights.copy_(told)
        lane.cursor.zero_()

    def _client(self, first: int, batch: int) -> ClientPlan:
        """One who takes a step with so many examples from that one on, in the middle of every crop."""
        rows = np.full((1, self.table.batch), -1)
        rows[:, :batch] = np.arange(first, first + batch) % len(self.table.population)
        return ClientPlan(
            user=0,
            client_id=0,
            num_examples=batch,
            weight=1.0,
            example_indices_SB=rows,
            example_weights_SB=(rows >= 0).astype(np.float32),
            augment_uniforms_SBD=np.full((*rows.shape, self.table.dice), 0.5, np.float32),
            dropout_seeds_S=np.zeros(1, np.int64),
            full_indices=None,
            full_weights=None,
        )

    def _exact(self, lane: Stream, shape: StepShape) -> Tensor:
        """The gradient of the plain model in full float32, uncompiled."""
        copy, lane.copy = lane.copy, lane.theta
        try:
            with arithmetic("float32"):
                return self._whole(lane, shape, self._made(shape, self.plain, torch.float32))
        finally:
            lane.copy = copy
