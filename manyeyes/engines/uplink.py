"""What a client sends of its update: bounded, packed, and unpacked by the server."""

from __future__ import annotations

import torch
from torch import Tensor

from manyeyes.components.numerics import l2_norms
from manyeyes.core.engine import RoundContext
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.rng import make_rng

RESIDUAL = "owed"  # under which a client keeps what packing has lost


def simulate_uplink(
    update: Tensor, plan: RoundPlan, client: ClientPlan, work: RoundContext, own: dict[str, Tensor]
) -> tuple[Tensor, float, dict[str, Tensor]]:
    """What the server adds up [W], the length that the bound was put to, and what the client keeps of packing."""
    if work.compressor is None:
        norm = float(l2_norms(update))
        return _bounded(update, norm, work.clipping_norm), norm, {}
    arrays, norm, keeps = compress(update, plan, client, work, own)
    return decompress(arrays, len(update), work), norm, keeps


def compress(
    update: Tensor, plan: RoundPlan, client: ClientPlan, work: RoundContext, own: dict[str, Tensor]
) -> tuple[dict[str, Tensor], float, dict[str, Tensor]]:
    """The client's half: the arrays that travel, the length that the bound was put to, and what the client keeps.

    What was owed is added first and bounded with the update.
    """
    packing, shared = work.compressor, update if work.personal_mask is None else update[~work.personal_mask]
    if RESIDUAL in own:
        shared = shared + own[RESIDUAL]
    norm = float(l2_norms(shared))
    shared = _bounded(shared, norm, work.clipping_norm)
    if packing is None or not len(shared):
        return {"values": shared}, norm, {}
    arrays = packing.encode(shared, make_rng(plan.seed, "compress", plan.round, client.client_id))
    return arrays, norm, {RESIDUAL: shared - packing.decode(arrays, len(shared))} if packing.error_feedback else {}


def decompress(arrays: dict[str, Tensor], numbers: int, work: RoundContext) -> Tensor:
    """The server's half: the update [W] that arrived.

    Packing may lengthen a vector, so it is bounded once more: no client counts for more than the bound, whatever its
    numbers were rounded to.
    """
    shared = numbers if work.personal_mask is None else int((~work.personal_mask).sum())
    received = arrays["values"] if work.compressor is None or not shared else work.compressor.decode(arrays, shared)
    if received.shape != (shared,) or received.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"compress={type(work.compressor).__name__} decoded {received.dtype} of shape {tuple(received.shape)}: it "
            f"must return {shared} float32 numbers"
        )
    received = _bounded(received, float(l2_norms(received)), work.clipping_norm)
    if work.personal_mask is None:
        return received
    whole = received.new_zeros(numbers)
    whole[~work.personal_mask] = received
    return whole


def _bounded(vector: Tensor, norm: float, bound: float) -> Tensor:
    return vector * min(1.0, bound / norm) if norm else vector
