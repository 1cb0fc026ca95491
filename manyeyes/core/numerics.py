"""L2 norms as gradients and updates are clipped by."""

import torch
from torch import Tensor

CPU_BLOCK_ELEMENTS = 2**16


def l2_norms(vectors: Tensor) -> Tensor:
    """Return the L2 norm of each vector, summed in blocks on a CPU.

    PyTorch's own norm of 11 million float32 values is 4e-4 too small, so a clip would let too much through.
    """
    if vectors.is_cuda or vectors.shape[-1] <= CPU_BLOCK_ELEMENTS:
        return torch.linalg.vector_norm(vectors, dim=-1)
    norms = [torch.linalg.vector_norm(block, dim=-1) for block in vectors.split(CPU_BLOCK_ELEMENTS, -1)]
    return torch.linalg.vector_norm(torch.stack(norms, -1), dim=-1)


def clip(vector: Tensor, norm: float, max_norm: float) -> Tensor:
    """Return a vector of this norm, scaled down to `max_norm` where it is longer."""
    return vector * min(1.0, max_norm / norm) if norm else vector
