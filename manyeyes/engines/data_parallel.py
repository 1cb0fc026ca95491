"""Several ranks, one client: each has a part of every batch, and gradients are added up before a step.

The longest client of a round is what all ranks wait for: of FLAIR's users some hold 200 times as much as most.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from manyeyes.core.population import Floats
from manyeyes.engines.batch import EPS
from manyeyes.models.dropout import SeededDropout
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import probe

# What a core and a network do, roughly, in seconds: they only decide who works together, as a function of the model
# alone. A measurement would decide another way another day, and runs repeat bit for bit.
PER_FLOP, PER_BYTE, PER_CALL = 2e-11, 1e-9, 5e-4


@dataclass(frozen=True)
class ClientGroup:
    """Who this rank trains a client with."""

    rank: int
    size: int
    add: Callable[[Tensor], Tensor]  # the sum over the members

    def gradient(
        self,
        of: Callable[[NDArray[np.bool_]], tuple[float, Tensor]],
        real_B: NDArray[np.bool_],
        weights_B: Floats,
        theta: Tensor,
    ) -> tuple[float, Tensor]:
        """The loss of a batch and its gradient, from what each member finds of its part."""
        mine, found = self.shard_mask(real_B), torch.zeros(len(theta) + 1, dtype=theta.dtype, device=theta.device)
        if mine.any():
            loss, slope = of(mine)
            part = float(weights_B[mine].sum() / max(weights_B[real_B].sum(), EPS))
            found = part * torch.cat([slope, slope.new_tensor([loss])])
        found = self.add(found)
        return float(found[-1]), found[:-1]

    def shard_mask(self, real_B: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """This member's part of a batch."""
        part = np.zeros_like(real_B)
        part[np.flatnonzero(real_B)[self.rank :: self.size]] = True
        return part


class GroupCache:
    """The groups of processes that have trained together, each made when it is first needed."""

    def __init__(self, model: FlatModel, shape: tuple[int, int]) -> None:
        self.model, self.shape = model, shape  # of an image
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        atexit.register(self._groups.clear)  # a group whose threads outlive the interpreter brings the process down

    @cached_property
    def allreduce_cost(self) -> float:
        """What an all-reduce of the gradient costs, in images; infinite where a batch cannot be parted."""
        model = self.model
        dropping = any(isinstance(part, SeededDropout) for part in model.module.modules())
        found = probe(model, *self.shape)
        if found.mixes_batch or found.uses_rng or dropping:
            return math.inf
        weights = model.read()
        image = torch.zeros(1, 3, *self.shape, device=weights.device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(weights[: model.num_trainable], weights[model.num_trainable :], image)
        image_seconds = 3 * max(counter.get_total_flops(), 1) * PER_FLOP
        return (PER_CALL + 4 * model.num_trainable * PER_BYTE) / image_seconds

    def group(self, members: list[int]) -> dist.ProcessGroup | None:
        """All ranks ask for it, of the team or not, in the same order."""
        if tuple(members) not in self._groups:
            self._groups[tuple(members)] = dist.new_group(members)
        return self._groups[tuple(members)]
