"""How long a vector is: what gradients and updates are clipped by."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2**16  # numbers whose squares are summed at once on a CPU


def l2_norms(vectors: Tensor) -> Tensor:
    """The length of each vector, in blocks on a CPU: PyTorch's own falls short by 4e-4 with 11 million numbers.

    A clip that measures short lets through more than it says.
    """
    if vectors.is_cuda or vectors.shape[-1] <= BLOCK:
        return torch.linalg.vector_norm(vectors, dim=-1)
    parts = [torch.linalg.vector_norm(part, dim=-1) for part in vectors.split(BLOCK, -1)]
    return torch.linalg.vector_norm(torch.stack(parts, -1), dim=-1)
