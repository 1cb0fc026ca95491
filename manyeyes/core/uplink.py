"""The update that a client sends: clipped by its L2 norm, then compressed, and decompressed by the server."""

import torch
from torch import Tensor

from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.rng import make_rng
from manyeyes.core.state import RESIDUAL, ClientState, RoundContext

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


def simulate_uplink(
    update_W: Tensor, plan: RoundPlan, client: ClientPlan, context: RoundContext, client_state: ClientState
) -> tuple[Tensor, float, ClientState]:
    """Return the update that the server receives [W], its norm before clipping, and what the client keeps."""
    if context.compressor is None:
        norm = float(l2_norms(update_W))
        return clip(update_W, norm, context.clipping_norm), norm, {}
    arrays, norm, residual = compress(update_W, plan, client, context, client_state)
    return decompress(arrays, len(update_W), context), norm, residual


def compress(
    update_W: Tensor, plan: RoundPlan, client: ClientPlan, context: RoundContext, client_state: ClientState
) -> tuple[dict[str, Tensor], float, ClientState]:
    """Do the client's half: return the arrays that travel, the norm before clipping, and what the client keeps.

    The residual of earlier rounds is added first and clipped with the update.
    """
    compressor = context.compressor
    shared = update_W if context.personal_mask is None else update_W[~context.personal_mask]
    if RESIDUAL in client_state:
        shared = shared + client_state[RESIDUAL]
    norm = float(l2_norms(shared))
    shared = clip(shared, norm, context.clipping_norm)
    if compressor is None or not len(shared):
        return {"values": shared}, norm, {}
    arrays = compressor.encode(shared, make_rng(plan.seed, "compress", plan.round, client.stream))
    if not compressor.error_feedback:
        return arrays, norm, {}
    return arrays, norm, {RESIDUAL: shared - compressor.decode(arrays, len(shared))}


def decompress(arrays: dict[str, Tensor], num_elements: int, context: RoundContext) -> Tensor:
    """Do the server's half: return the update that arrived [W].

    Compression may lengthen a vector, so it is clipped once more: no client counts for more than the clipping norm,
    whatever its values were rounded to.
    """
    mask = context.personal_mask
    num_shared = num_elements if mask is None else int((~mask).sum())
    compressor = context.compressor
    received = arrays["values"] if compressor is None or not num_shared else compressor.decode(arrays, num_shared)
    if received.shape != (num_shared,) or received.dtype not in (torch.float32, torch.float64):
        decoded = f"{type(compressor).__name__} decoded {received.dtype} of shape {tuple(received.shape)}"
        raise ValueError(f"compressor={decoded}: return {num_shared} float32 values from decode.")
    received = clip(received, float(l2_norms(received)), context.clipping_norm)
    if mask is None:
        return received
    update_W = received.new_zeros(num_elements)
    update_W[~mask] = received
    return update_W
