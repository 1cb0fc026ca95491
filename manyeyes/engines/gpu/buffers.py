"""The plan of a round in device memory, in chunks and at fixed addresses.

The plan is uploaded chunk by chunk into one half of the buffers while the streams work on the other. Axes: R steps that
a half has room for, L streams, K clients side by side, B examples per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Ints, Population
from manyeyes.engines.gpu.scheduling import StepRange
from manyeyes.engines.images import DeviceImages

PLAN_BYTES, IMAGE_BYTES = 2**26, 2**30  # of each half, about: of the plan, and of images that are not on the device
MAX_STEPS = 4096  # of each stream in a half
BYTES_PER_EXAMPLE = 16  # of the plan, without augmentation and targets
BYTES_PER_CLASS_ID, BYTES_PER_UNIFORM = 8, 4


@dataclass(frozen=True, eq=False)
class PlanChunk:
    """Some steps of every stream, in the host's memory and ready to be copied."""

    step_ranges: tuple[list[StepRange], ...]  # of each stream
    arrays: dict[str, Tensor]
    pixels: Tensor | None  # the images, where they are not on the device


class PlanBuffers:
    """Device memory for two chunks; the column `images` says which row of the tensor `images` an example's image is."""

    def __init__(
        self,
        population: Population,
        device: torch.device,
        num_streams: int,
        width: int,
        batch_size: int,
        num_uniforms: int,
    ) -> None:
        self.population, self.device = population, device
        self.num_streams, self.width, self.batch_size, self.num_uniforms = num_streams, width, batch_size, num_uniforms
        self._is_resident = isinstance(population.images, DeviceImages)
        examples_per_step = num_streams * width * batch_size
        self.max_steps = self._max_steps(examples_per_step)

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((2 * self.max_steps, num_streams, width, *shape), dtype=dtype, device=device)

        is_multi = population.labels.multi
        self._target_dtype = np.uint8 if is_multi else np.int64
        self.columns = {
            "images": make(batch_size, dtype=torch.int64),
            "weights": make(batch_size),
            "augment_uniforms": make(batch_size, num_uniforms),
            "targets": make(batch_size, len(population.classes), dtype=torch.uint8)
            if is_multi
            else make(batch_size, dtype=torch.int64),
            "dropout_seeds": make(dtype=torch.int64),
            "is_active": make(dtype=torch.bool),
            "phases": make(dtype=torch.int8),
            "client_weights": make(),
        }
        self.results = make(3, dtype=torch.float64)  # of clients that end in a chunk: sum of losses, norm, accepted
        shape = (2 * self.max_steps * examples_per_step, *population.image_shape)
        images = population.images.tensor if self._is_resident else torch.empty(shape, dtype=torch.uint8, device=device)
        self.images: Tensor = images
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # that copies
        self.free_events: list[torch.cuda.Event | None] = [None, None]  # of each half: after which nothing reads it
        self._next_half = 0
        self._last_sent: tuple[PlanChunk, int] | None = None  # the last chunk, and its half

    def _max_steps(self, examples_per_step: int) -> int:
        """Return how many steps of each stream a half has room for."""
        labels = self.population.labels
        target_bytes = len(self.population.classes) if labels.multi else BYTES_PER_CLASS_ID
        example_bytes = BYTES_PER_EXAMPLE + BYTES_PER_UNIFORM * self.num_uniforms + target_bytes
        max_steps = max(1, PLAN_BYTES // (examples_per_step * example_bytes))
        if not self._is_resident:
            image_bytes = int(np.prod(self.population.image_shape))
            max_steps = max(1, min(max_steps, IMAGE_BYTES // (examples_per_step * image_bytes)))
        return min(max_steps, MAX_STEPS)

    def pack(self, plan: RoundPlan, step_ranges: Sequence[list[StepRange]]) -> PlanChunk:
        """Return the arrays of one chunk; padding repeats the first example of its batch and has weight 0."""
        num_steps = max(sum(r.last - r.first for r in stream) for stream in step_ranges)
        layout = _ChunkLayout.from_plan(plan, step_ranges, (num_steps, self.num_streams, self.width))
        clients, size = layout.clients, self.batch_size
        uniforms = [c.augment_uniforms_SBD[s] for c, s in clients if c.augment_uniforms_SBD is not None]
        examples = layout.fill(np.int64, [c.example_indices_SB[s] for c, s in clients], size, empty=-1)
        is_real = examples >= 0
        filled = np.where(is_real, examples, np.maximum(examples[..., :1], 0))
        targets = self.population.labels.targets(filled.ravel()).astype(self._target_dtype, copy=False)
        arrays: dict[str, NDArray[Any]] = {
            "weights": layout.fill(np.float32, [c.example_weights_SB[s] for c, s in clients], size),
            "augment_uniforms": layout.fill(np.float32, uniforms, size, self.num_uniforms),
            "targets": targets.reshape(*filled.shape, *targets.shape[1:]),
            "dropout_seeds": layout.fill(np.int64, [c.dropout_seeds_S[s] for c, s in clients]),
            "is_active": layout.fill(np.bool_, [np.ones(len(layout.cells), np.bool_)]),
            "phases": layout.fill(np.int8, [c.phase_S[s] for c, s in clients if c.phase_S is not None]),
            "client_weights": layout.client_weights,
        }
        pixels = None
        if self._is_resident:
            arrays["images"] = self.population.image_indices[filled]
        else:
            pixels = self._to_pinned(self.population.pixels(examples[is_real]))
            positions = np.cumsum(is_real.ravel()).reshape(is_real.shape) - 1
            arrays["images"] = np.where(is_real, positions, np.maximum(positions[..., :1], 0))
        return PlanChunk(tuple(step_ranges), {name: self._to_pinned(array) for name, array in arrays.items()}, pixels)

    def send(self, chunk: PlanChunk) -> int:
        """Copy a chunk, unless it is the last one sent, into the half that was used before; return that half.

        It is copied as soon as nothing reads the half, while other steps run.
        """
        if self._last_sent is not None and self._last_sent[0] is chunk:
            return self._last_sent[1]
        half, self._next_half = self._next_half, 1 - self._next_half
        self._last_sent = chunk, half
        event = self.free_events[half]
        if self.stream is not None and event is not None:
            self.stream.wait_event(event)
        with torch.cuda.stream(self.stream):  # None, on a CPU: no effect
            self.upload(chunk, half)
        return half

    def upload(self, chunk: PlanChunk, half: int) -> None:
        """Copy a chunk into a half, on the current stream and without waiting."""
        first, first_image = half * self.max_steps, half * len(self.images) // 2
        for name, array in chunk.arrays.items():
            self.columns[name][first : first + len(array)].copy_(array, non_blocking=True)
        if chunk.pixels is not None:
            self.columns["images"][first : first + len(chunk.arrays["images"])] += first_image
            self.images[first_image : first_image + len(chunk.pixels)].copy_(chunk.pixels, non_blocking=True)

    def results_of(self, chunk: PlanChunk, half: int) -> Tensor:
        """Return a copy of the results of the clients that ended in a chunk, stream by stream [groups, K, 3]."""
        first = half * self.max_steps
        num_ended = [sum(step_range.ends for step_range in stream) for stream in chunk.step_ranges]
        results = self.results[first : first + max(num_ended)].transpose(0, 1)
        return torch.cat([results[stream, :count] for stream, count in enumerate(num_ended)])

    def _to_pinned(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self.device.type == "cuda" else tensor


@dataclass(frozen=True, eq=False)
class _ChunkLayout:
    """Which cells [R, L, K] of a chunk the steps of each client are in."""

    shape: tuple[int, ...]
    clients: list[tuple[ClientPlan, slice]]  # and their steps
    cells: Ints  # of all steps of the clients, in the same order
    client_weights: NDArray[np.float32]  # by the order in which groups end [R, L, K]

    @staticmethod
    def from_plan(plan: RoundPlan, step_ranges: Sequence[list[StepRange]], shape: tuple[int, int, int]) -> _ChunkLayout:
        all_cells = np.arange(np.prod(shape)).reshape(shape)
        client_weights = np.zeros(shape, np.float32)
        clients, cells = list[tuple[ClientPlan, slice]](), list[Ints]()
        for stream, ranges in enumerate(step_ranges):
            row, num_ended = 0, 0
            for step_range in ranges:
                for k, index in enumerate(step_range.group.client_indices):
                    client = plan.clients[index]
                    steps = slice(step_range.first, min(step_range.last, client.num_steps))
                    clients.append((client, steps))
                    cells.append(all_cells[row : row + max(0, steps.stop - steps.start), stream, k])
                    if step_range.ends:
                        client_weights[num_ended, stream, k] = client.weight
                row, num_ended = row + step_range.last - step_range.first, num_ended + step_range.ends
        return _ChunkLayout(shape, clients, np.concatenate(cells), client_weights)

    def fill(self, dtype: Any, steps: list[NDArray[Any]], *shape: int, empty: int = 0) -> NDArray[Any]:
        """Return an array with the steps of all clients in their cells; without steps, it stays empty."""
        array: NDArray[Any] = np.full((*self.shape, *shape), empty, dtype)
        if steps:
            array.reshape(int(np.prod(self.shape)), *shape)[self.cells] = np.concatenate(steps)
        return array
