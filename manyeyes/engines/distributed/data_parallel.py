"""One client on several processes: each has a part of every batch, and gradients are summed before a step.

All processes wait for the largest client of a round: some users of FLAIR hold 200 times as many images as most.
"""

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

from manyeyes.components.losses import EPS
from manyeyes.core.population import Floats
from manyeyes.models.flat import FlatModel, SeededDropout
from manyeyes.models.inspection import probe

LossAndGrad = tuple[float, Tensor]

# Rough times of one core and of a network. They only decide which clients are split, as a function of the model alone:
# a measurement would decide differently each time, and runs repeat bit for bit.
SECONDS_PER_FLOP, SECONDS_PER_BYTE, SECONDS_PER_ALLREDUCE = 2e-11, 1e-9, 5e-4
FLOPS_FACTOR = 3  # of forward and backward, in forward passes


@dataclass(frozen=True)
class ClientGroup:
    """The processes that train one client, and which of them this one is."""

    rank: int
    size: int
    all_reduce: Callable[[Tensor], Tensor]  # the sum over the members

    def gradient(
        self,
        gradient_of: Callable[[NDArray[np.bool_]], LossAndGrad],
        is_real_B: NDArray[np.bool_],
        weights_B: Floats,
        theta: Tensor,
    ) -> LossAndGrad:
        """Return the loss of a batch and its gradient, from those of each member's part."""
        shard_B = self.shard_mask(is_real_B)
        local = torch.zeros(len(theta) + 1, dtype=theta.dtype, device=theta.device)
        if shard_B.any():
            loss, grad = gradient_of(shard_B)
            fraction = float(weights_B[shard_B].sum() / max(weights_B[is_real_B].sum(), EPS))
            local = fraction * torch.cat([grad, grad.new_tensor([loss])])
        total = self.all_reduce(local)
        return float(total[-1]), total[:-1]

    def shard_mask(self, is_real_B: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which examples of a batch are this member's."""
        shard_B = np.zeros_like(is_real_B)
        shard_B[np.flatnonzero(is_real_B)[self.rank :: self.size]] = True
        return shard_B


class GroupCache:
    """Process groups, each made when it is first needed, and what it costs to train in one."""

    def __init__(self, model: FlatModel, image_size: tuple[int, int], channels: int = 3) -> None:
        self.model, self.image_size, self.channels = model, image_size, channels
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        atexit.register(self._groups.clear)  # a group whose threads outlive the interpreter crashes the process

    @cached_property
    def allreduce_cost(self) -> float:
        """The cost of an all-reduce of the gradient, in images; infinite where a batch cannot be split."""
        model = self.model
        has_dropout = any(isinstance(layer, SeededDropout) for layer in model.module.modules())
        traits = probe(model, *self.image_size, self.channels)
        if traits.mixes_batch or traits.uses_rng or has_dropout:
            return math.inf
        weights = model.read()
        image = torch.zeros(1, self.channels, *self.image_size, device=weights.device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(weights[: model.num_trainable], weights[model.num_trainable :], image)
        image_seconds = FLOPS_FACTOR * max(counter.get_total_flops(), 1) * SECONDS_PER_FLOP
        return (SECONDS_PER_ALLREDUCE + 4 * model.num_trainable * SECONDS_PER_BYTE) / image_seconds

    def group(self, members: list[int]) -> dist.ProcessGroup | None:
        """Return the process group of these ranks; every process calls this, member or not, in the same order."""
        if tuple(members) not in self._groups:
            self._groups[tuple(members)] = dist.new_group(members)
        return self._groups[tuple(members)]
