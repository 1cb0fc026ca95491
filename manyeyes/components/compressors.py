"""How an update is packed before it is sent: typed arrays on the way, the same number of floats at the other end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.components.validation import require_int
from manyeyes.core.registry import register

STEPS = 127  # of an int8, on each side of 0


@register("compressor", "bf16")
@dataclass(frozen=True)
class BF16:
    """Every number rounded to the nearest bf16: half the bytes, 8 bits of mantissa."""

    error_feedback = False

    def num_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        return {"values": update_N.to(torch.bfloat16)}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return arrays["values"].float()


@register("compressor", "int8")
@dataclass(frozen=True)
class Int8:
    """Every number as a step of -127..127 of its chunk's own scale, up or down by chance so that the mean is right.

    Unbiased, as QSGD (Alistarh et al. 2017): x = s (l + f) becomes s (l + 1) with probability f, else s l.
    """

    block_size: int = 1024  # numbers that share a scale, which is a float32
    error_feedback = False

    def __post_init__(self) -> None:
        require_int("int8's chunk", self.block_size, 1)

    def num_bytes(self, num_elements: int) -> int:
        return num_elements + 4 * math.ceil(num_elements / self.block_size)

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        numbers = len(update_N)
        chunks = F.pad(update_N, (0, -numbers % self.block_size)).view(-1, self.block_size)
        scales = chunks.abs().amax(1) / STEPS
        steps = (chunks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).view(-1)[:numbers]
        low = steps.floor()
        dice = torch.from_numpy(rng.random(numbers, np.float32)).to(update_N.device)
        values = (low + (dice < steps - low)).clamp(-STEPS, STEPS)
        return {"values": values.to(torch.int8), "scales": scales}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return arrays["values"].float() * arrays["scales"].repeat_interleave(self.block_size)[:num_elements]


@register("compressor", "topk")
@dataclass(frozen=True)
class TopK:
    """The largest numbers and their places; the rest is owed, and added to what the client sends next time.

    Error feedback (Stich et al. 2018, "Sparsified SGD with memory"): what is owed is kept by the client.
    """

    fraction: float = 0.01
    error_feedback = True

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"top-k's share is {self.fraction}: it must be above 0 and at most 1")

    def _num_sent(self, numbers: int) -> int:
        return math.ceil(self.fraction * numbers)

    def num_bytes(self, num_elements: int) -> int:
        return 8 * self._num_sent(num_elements)

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        places = update_N.abs().topk(self._num_sent(len(update_N)), sorted=False).indices.sort().values
        return {"places": places.to(torch.int32), "values": update_N[places]}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        received = arrays["values"].new_zeros(num_elements)
        received[arrays["places"].long()] = arrays["values"]
        return received
