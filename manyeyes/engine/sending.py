"""What a client sends of its update: bounded, packed, and unpacked by the server."""

from __future__ import annotations

import torch
from torch import Tensor

from manyeyes.chance import generator
from manyeyes.parts.length import lengths
from manyeyes.work import Client, Plan, Work

OWED = "owed"  # under which a client keeps what packing has lost


def send(
    update: Tensor, plan: Plan, client: Client, work: Work, own: dict[str, Tensor]
) -> tuple[Tensor, float, dict[str, Tensor]]:
    """What the server adds up [W], the length that the bound was put to, and what the client keeps of packing."""
    if work.compress is None:
        norm = float(lengths(update))
        return _bounded(update, norm, work.bound), norm, {}
    arrays, norm, keeps = pack(update, plan, client, work, own)
    return unpack(arrays, len(update), work), norm, keeps


def pack(
    update: Tensor, plan: Plan, client: Client, work: Work, own: dict[str, Tensor]
) -> tuple[dict[str, Tensor], float, dict[str, Tensor]]:
    """The client's half: the arrays that travel, the length that the bound was put to, and what the client keeps.

    What was owed is added first and bounded with the update.
    """
    packing, shared = work.compress, update if work.personal is None else update[~work.personal]
    if OWED in own:
        shared = shared + own[OWED]
    norm = float(lengths(shared))
    shared = _bounded(shared, norm, work.bound)
    if packing is None or not len(shared):
        return {"values": shared}, norm, {}
    arrays = packing.encode(shared, generator(plan.seed, "compress", plan.round, client.key))
    return arrays, norm, {OWED: shared - packing.decode(arrays, len(shared))} if packing.feedback else {}


def unpack(arrays: dict[str, Tensor], numbers: int, work: Work) -> Tensor:
    """The server's half: the update [W] that arrived.

    Packing may lengthen a vector, so it is bounded once more: no client counts for more than the bound, whatever its
    numbers were rounded to.
    """
    shared = numbers if work.personal is None else int((~work.personal).sum())
    received = arrays["values"] if work.compress is None or not shared else work.compress.decode(arrays, shared)
    if received.shape != (shared,) or received.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"compress={type(work.compress).__name__} decoded {received.dtype} of shape {tuple(received.shape)}: it "
            f"must return {shared} float32 numbers"
        )
    received = _bounded(received, float(lengths(received)), work.bound)
    if work.personal is None:
        return received
    whole = received.new_zeros(numbers)
    whole[~work.personal] = received
    return whole


def _bounded(vector: Tensor, norm: float, bound: float) -> Tensor:
    return vector * min(1.0, bound / norm) if norm else vector
