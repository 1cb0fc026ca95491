"""How a client's update is encoded for the upload: typed arrays on the wire, the same number of floats after it.

A compressor may have a method `invalid_reason`, which says why arrays of the right types and shapes cannot be what
`encode` returned: a server calls it before it decodes what a client sent.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.core.registry import component, option

INT8_STEPS = 127  # on each side of 0


@component("compressor", "bf16")
class BF16:
    """Every value rounded to the nearest bf16: half the bytes, 8 bits of mantissa."""

    error_feedback = False

    def num_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        return {"values": update_N.to(torch.bfloat16)}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return arrays["values"].float()


@component("compressor", "int8")
class Int8:
    """Every value as a step of -127..127 of its block's scale, rounded up or down at random.

    Unbiased, as QSGD (Alistarh et al. 2017): x = s (l + f) becomes s (l + 1) with probability f, else s l.
    """

    block_size: int = option(1024, "values that share a float32 scale", minimum=1)
    error_feedback = False

    def num_bytes(self, num_elements: int) -> int:
        return num_elements + 4 * math.ceil(num_elements / self.block_size)

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        num_elements = len(update_N)
        blocks = F.pad(update_N, (0, -num_elements % self.block_size)).view(-1, self.block_size)
        scales = blocks.abs().amax(1) / INT8_STEPS
        steps = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).view(-1)[:num_elements]
        lower = steps.floor()
        uniforms = torch.from_numpy(rng.random(num_elements, np.float32)).to(update_N.device)
        values = (lower + (uniforms < steps - lower)).clamp(-INT8_STEPS, INT8_STEPS)
        return {"values": values.to(torch.int8), "scales": scales}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        return arrays["values"].float() * arrays["scales"].repeat_interleave(self.block_size)[:num_elements]

    def invalid_reason(self, arrays: dict[str, Tensor], num_elements: int) -> str | None:
        if bool((arrays["values"] < -INT8_STEPS).any()):
            return f"it has a value below {-INT8_STEPS} steps"
        scales = arrays["scales"]
        return (
            None if bool((scales.isfinite() & (scales >= 0)).all()) else "it has a scale that is negative or not finite"
        )


@component("compressor", "topk")
class TopK:
    """The values of largest magnitude with their indices; the client adds the rest to its next update.

    Error feedback (Stich et al. 2018, "Sparsified SGD with memory"): the residual stays with the client.
    """

    fraction: float = option(0.01, "fraction of the values that is sent", above=0, maximum=1)
    error_feedback = True

    def num_bytes(self, num_elements: int) -> int:
        return 8 * math.ceil(self.fraction * num_elements)  # an index and a value of 4 bytes each

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
        num_sent = math.ceil(self.fraction * len(update_N))
        indices = update_N.abs().topk(num_sent, sorted=False).indices.sort().values
        return {"indices": indices.to(torch.int32), "values": update_N[indices]}

    def decode(self, arrays: dict[str, Tensor], num_elements: int) -> Tensor:
        received = arrays["values"].new_zeros(num_elements)
        received[arrays["indices"].long()] = arrays["values"]
        return received

    def invalid_reason(self, arrays: dict[str, Tensor], num_elements: int) -> str | None:
        indices = arrays["indices"]
        if bool((indices < 0).any() or (indices >= num_elements).any()):
            return f"it has an index outside 0..{num_elements - 1}"
        return None if bool((indices[1:] > indices[:-1]).all()) else "its indices are not in ascending order, each once"
