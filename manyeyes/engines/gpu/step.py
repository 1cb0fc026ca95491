"""A step of clients side by side: from the plan's buffers to images, losses and gradients, compiled where correct."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from manyeyes.components.losses import weighted_mean
from manyeyes.core.algorithm import Loss
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.engines.base import compute_dtype, deterministic_kernels
from manyeyes.engines.gpu.buffers import PlanBuffers
from manyeyes.engines.gpu.compiling import compiled, compiling, first_bad_gradient
from manyeyes.engines.gpu.scheduling import Group, StepRange
from manyeyes.engines.gpu.stream import Stream
from manyeyes.models.flat import FlatModel

if TYPE_CHECKING:
    from manyeyes.engines.gpu.engine import GpuEngine

StepShape = tuple[int, int]  # clients side by side, examples of each
ThetaPieces = tuple[Tensor, ...]  # trainable values of clients side by side, in `FlatModel.pieces`


@dataclass(frozen=True)
class StepFunctions:
    """The two functions of a step. Fused, preprocessing would be computed once for each use of a pixel."""

    preprocess: Callable[..., Tensor]  # from the plan's buffers to images
    loss: Callable[..., Tensor]  # from images to losses


@dataclass(frozen=True, eq=False)
class StepCompiler:
    """Makes the steps of every shape for rounds of one capture key."""

    engine: GpuEngine
    buffers: PlanBuffers
    loss_function: Loss

    def gradient(self, stream: Stream, shape: StepShape, functions: StepFunctions) -> tuple[Tensor, ThetaPieces]:
        """Return the loss of each client's next batch [K], and its gradient in pieces [K, ...]."""
        width, model = shape[0], self.engine.model
        sizes = [sum(numels) for numels in model.pieces] if width > 1 else [model.num_trainable]
        theta = tuple(piece.detach().requires_grad_() for piece in stream.compute_theta[:width].split(sizes, 1))
        columns = {name: column[:, stream.number] for name, column in self.buffers.columns.items()}
        images = functions.preprocess(stream.step_index, self.buffers.images, columns)
        loss_K = functions.loss(theta, stream.statistics[:width], images, stream.step_index, columns)
        return loss_K.detach(), torch.autograd.grad(loss_K, theta, torch.ones_like(loss_K))

    def make(self, shape: StepShape, stream: Stream) -> StepFunctions:
        """Return the compiled step if every parameter's gradient is that of the plain model; else the plain step."""
        dtype = compute_dtype(self.engine.precision)
        fast = self._functions(shape, self.engine.model, dtype)
        is_partial = self.engine.exact_batches and shape[1] != self.buffers.batch_size  # the last batch of a client
        if not self.engine.compiles or is_partial:
            return fast
        fast = StepFunctions(compiled(fast.preprocess), compiled(fast.loss))
        plain = self._functions(shape, self.engine.plain_model, dtype)
        self._load_trial(stream, shape)
        statistics = stream.statistics.clone()
        try:
            with compiling(f"a step of {shape[0]} x {shape[1]} images"):
                fast_KP = self._full_gradient(stream, shape, fast)
        except Exception as error:  # a compiler may fail with any error, and training can go on without it
            print(f"a step cannot be compiled and runs uncompiled: {str(error).splitlines()[0]}", file=sys.stderr)
            return plain
        stream.statistics.copy_(statistics)
        plain_KP = self._full_gradient(stream, shape, plain)
        exact_KP = self._exact_gradient(stream, shape)
        stream.statistics.copy_(statistics)
        sizes = {name: int(np.prod(size)) for name, size in self.engine.model.trained_shapes.items()}
        bad = first_bad_gradient(sizes, fast_KP, plain_KP, exact_KP)
        if bad is None:
            return fast
        print(
            f"the compiled gradient of {bad[0]} has {bad[1]:.1f} times the error that is tolerated in batches of "
            f"{shape[1]}: these run uncompiled",
            file=sys.stderr,
        )
        return plain

    def _functions(self, shape: StepShape, model: FlatModel, dtype: torch.dtype) -> StepFunctions:
        """Return the images and the losses of K batches, as functions of the buffers at a step."""
        width, batch_size = shape
        is_multi = self.buffers.population.labels.multi
        augment = self.engine.setup.preprocess.augment

        def at(step_index: Tensor, column: Tensor) -> Tensor:
            return column.index_select(0, step_index)[0, :width]

        def preprocess(step_index: Tensor, images: Tensor, columns: dict[str, Tensor]) -> Tensor:
            rows, uniforms = (
                at(step_index, columns[name])[:, :batch_size].flatten(0, 1) for name in ("images", "augment_uniforms")
            )
            augmented = augment(images[rows], uniforms if uniforms.shape[-1] else None)
            return model.to_memory_format(augmented).to(dtype).unflatten(0, (width, batch_size))

        def loss_of_client(theta: Tensor | ThetaPieces, statistics: Tensor, images: Tensor, *batch: Tensor) -> Tensor:
            targets, weights, seed = batch
            outputs = model(theta, statistics, images, seed).float()
            return weighted_mean(self.loss_function(outputs, targets), weights)

        def loss(
            theta_K: ThetaPieces, statistics_KS: Tensor, images: Tensor, step_index: Tensor, columns: dict[str, Tensor]
        ) -> Tensor:
            targets, weights = (at(step_index, columns[name])[:, :batch_size] for name in ("targets", "weights"))
            targets = targets.float() if is_multi else targets
            inputs = (statistics_KS, images, targets, weights, at(step_index, columns["dropout_seeds"]))
            if width > 1:
                with sdpa_kernel(SDPBackend.MATH):  # vmap has no rules for fused attention, or breaks its alignment
                    return vmap(loss_of_client)(theta_K, *inputs)
            return loss_of_client(*(tensor.squeeze(0) for tensor in (*theta_K, *inputs)))[None]

        return StepFunctions(preprocess, loss)

    def _full_gradient(self, stream: Stream, shape: StepShape, functions: StepFunctions) -> Tensor:  # [K, P]
        return torch.cat(self.gradient(stream, shape, functions)[1], 1).float()

    def _exact_gradient(self, stream: Stream, shape: StepShape) -> Tensor:
        """Return the gradient of the plain model in full float32, uncompiled."""
        compute_theta, stream.compute_theta = stream.compute_theta, stream.theta
        functions = self._functions(shape, self.engine.plain_model, torch.float32)
        try:
            with deterministic_kernels("float32"):
                return self._full_gradient(stream, shape, functions)
        finally:
            stream.compute_theta = compute_theta

    def _load_trial(self, stream: Stream, shape: StepShape) -> None:
        """Load the model's own weights and the first examples of the population.

        What a step is tried with does not depend on the round, so that a resumed run is compiled as it was before.
        """
        width, batch_size = shape
        plan = RoundPlan(0, 0, tuple(self._trial_client(k * batch_size, batch_size) for k in range(width)))
        step = StepRange(Group(tuple(range(width)), width, (batch_size,)), first=0, last=1)
        no_steps: list[list[StepRange]] = [[] for _ in range(self.buffers.num_streams - 1)]
        self.buffers.upload(self.buffers.pack(plan, [[step], *no_steps]), half=0)
        weights = stream.buffers.weights.clone()
        stream.buffers.weights.copy_(self.engine.model.read())
        stream.reset(width)
        stream.buffers.weights.copy_(weights)
        stream.step_index.zero_()

    def _trial_client(self, first: int, batch_size: int) -> ClientPlan:
        """Return the plan of a client that takes one step with the examples from `first`, without random crops."""
        buffers = self.buffers
        indices = np.full((1, buffers.batch_size), -1)
        indices[:, :batch_size] = np.arange(first, first + batch_size) % len(buffers.population)
        return ClientPlan(
            user=0,
            client_id=0,
            num_examples=batch_size,
            weight=1.0,
            example_indices_SB=indices,
            example_weights_SB=(indices >= 0).astype(np.float32),
            augment_uniforms_SBD=np.full((*indices.shape, buffers.num_uniforms), 0.5, np.float32),
            dropout_seeds_S=np.zeros(1, np.int64),
        )
