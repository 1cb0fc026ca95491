"""What the lanes of a device read: a round's plan in pieces, at addresses that never change.

The plan is uploaded piece by piece into one half of the table while the lanes work on the other. Axes: R steps that a
half has room for, L lanes, K clients side by side, B examples a batch.
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
from manyeyes.core.population import Ints, MultiLabels, Population
from manyeyes.engines.device_images import DeviceImages
from manyeyes.engines.gpu.scheduling import StepRange

PLAN_BYTES, IMAGE_BYTES = 2**26, 2**30  # of each half, about: what is planned, and images where they are not resident


@dataclass(frozen=True, eq=False)
class PlanChunk:
    """Some steps of every lane, in the host's memory and ready to be copied."""

    step_ranges: tuple[list[StepRange], ...]  # of each lane
    arrays: dict[str, Tensor]
    pixels: Tensor | None  # the images, where they are not resident


class PlanBuffers:
    """Device memory for two pieces; `rows` says where in `pictures` the image of an example is."""

    def __init__(
        self, population: Population, device: torch.device, lanes: int, width: int, batch: int, dice: int
    ) -> None:
        self.population, self.device, self.lanes, self.width, self.batch = population, device, lanes, width, batch
        self.dice = dice
        several = isinstance(population.labels, MultiLabels)
        self._resident = population.images if isinstance(population.images, DeviceImages) else None
        classes = len(population.classes) if several else 8
        step = lanes * width * batch
        self.room = max(1, PLAN_BYTES // (step * (16 + 4 * dice + classes)))
        if self._resident is None:
            self.room = max(1, min(self.room, IMAGE_BYTES // (step * int(np.prod(population.image_shape)))))
        self.room = min(self.room, 4096)

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((2 * self.room, lanes, width, *shape), dtype=dtype, device=device)

        self.columns = {
            "rows": make(batch, dtype=torch.int64),
            "weights": make(batch),
            "dice": make(batch, dice),
            "targets": make(batch, classes, dtype=torch.uint8) if several else make(batch, dtype=torch.int64),
            "seeds": make(dtype=torch.int64),
            "active": make(dtype=torch.bool),
            "only": make(dtype=torch.int8),
            "share": make(),
        }
        self.results = make(3, dtype=torch.float64)  # of the clients that end in a piece: sum of losses, norm, kept
        shape = (2 * self.room * step, *population.image_shape)
        self.pictures = (
            torch.empty(shape, dtype=torch.uint8, device=device) if self._resident is None else self._resident.tensor
        )
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # that copies
        self.over: list[torch.cuda.Event | None] = [None, None]  # of each half: after which nobody reads it any more
        self._next = 0  # half
        self._sent: tuple[PlanChunk, int] | None = None  # the last one, and its half

    def pack(self, plan: RoundPlan, stretches: Sequence[list[StepRange]]) -> PlanChunk:
        """The arrays of one piece; padding repeats the first example of its batch and weighs nothing."""
        used = max(sum(s.last - s.first for s in lane) for lane in stretches)
        shape = (used, self.lanes, self.width)
        cells = np.arange(np.prod(shape)).reshape(shape)
        arrays: dict[str, NDArray[Any]] = {
            "weights": np.zeros((*shape, self.batch), np.float32),
            "dice": np.zeros((*shape, *self.columns["dice"].shape[3:]), np.float32),
            "seeds": np.zeros(shape, np.int64),
            "active": np.zeros(shape, np.bool_),
            "only": np.zeros(shape, np.int8),
            "share": np.zeros(shape, np.float32),
        }
        parts, where = list[tuple[ClientPlan, slice]](), list[Ints]()
        for lane, some in enumerate(stretches):
            at, ended = 0, 0
            for stretch in some:
                for k, place in enumerate(stretch.group.client_indices):
                    client = plan.clients[place]
                    part = slice(stretch.first, min(stretch.last, client.num_steps))
                    parts.append((client, part))
                    where.append(cells[at : at + max(0, part.stop - part.start), lane, k])
                    if stretch.ends:
                        arrays["share"][ended, lane, k] = client.weight
                at, ended = at + stretch.last - stretch.first, ended + stretch.ends
        here = np.concatenate(where)

        def fill(array: NDArray[Any], steps: list[NDArray[Any]]) -> None:
            array.reshape(cells.size, *array.shape[3:])[here] = np.concatenate(steps)

        examples = np.full((*shape, self.batch), -1, np.int64)
        fill(examples, [client.example_indices_SB[part] for client, part in parts])
        fill(arrays["weights"], [client.example_weights_SB[part] for client, part in parts])
        fill(arrays["seeds"], [client.dropout_seeds_S[part] for client, part in parts])
        if plan.clients[0].augment_uniforms_SBD is not None:
            fill(
                arrays["dice"],
                [c.augment_uniforms_SBD[part] for c, part in parts if c.augment_uniforms_SBD is not None],
            )
        if plan.has_phases:
            fill(arrays["only"], [c.phase_S[part] for c, part in parts if c.phase_S is not None])
        arrays["active"].reshape(-1)[here] = True
        real = examples >= 0
        filled = np.where(real, examples, np.maximum(examples[..., :1], 0))
        targets: NDArray[Any] = self.population.labels.targets(filled.ravel())
        if targets.ndim > 1:
            targets = targets.astype(np.uint8)
        arrays["targets"] = targets.reshape(*filled.shape, *targets.shape[1:])
        pixels = None
        if self._resident is not None:
            arrays["rows"] = self.population.image_indices[filled]
        else:
            pixels = self.population.pixels(examples[real])
            places = np.cumsum(real.ravel()).reshape(real.shape) - 1
            arrays["rows"] = np.where(real, places, np.maximum(places[..., :1], 0))
        ready = {name: self._pinned(array) for name, array in arrays.items()}
        return PlanChunk(tuple(stretches), ready, None if pixels is None else self._pinned(pixels))

    def send(self, piece: PlanChunk) -> int:
        """Copy a piece, unless it is the last one sent, into the half that was used before; returns that half.

        It is copied as soon as the half is over, while others run.
        """
        if self._sent is not None and self._sent[0] is piece:
            return self._sent[1]
        half, self._next = self._next, 1 - self._next
        self._sent = piece, half
        if self.stream is None:
            self.upload(piece, half)
            return half
        if (over := self.over[half]) is not None:
            self.stream.wait_event(over)
        with torch.cuda.stream(self.stream):
            self.upload(piece, half)
        return half

    def upload(self, piece: PlanChunk, half: int) -> None:
        """Copy a piece into a half, on the current stream and without waiting."""
        first, images = half * self.room, half * len(self.pictures) // 2
        for name, array in piece.arrays.items():
            self.columns[name][first : first + len(array)].copy_(array, non_blocking=True)
        if piece.pixels is not None:
            self.columns["rows"][first : first + len(piece.arrays["rows"])] += images
            self.pictures[images : images + len(piece.pixels)].copy_(piece.pixels, non_blocking=True)

    def _pinned(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self.device.type == "cuda" else tensor
