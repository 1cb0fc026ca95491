"""What a client keeps between rounds, at the client: in its Flower context and, if asked, in a folder of its own.

The server says with each task which round of this client's it used last. What the client kept from that round is what
it goes on from: an answer that was lost, late or repeated leaves no trace. So two rounds are kept at most.
"""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyeyes.flower.wire import from_record, to_record
from manyeyes.training.tensors import write_tensors

NAME = "kept-"


def load_state(context: Context, folder: Path | None, round: int) -> dict[str, Tensor]:
    """What was kept from that round; nothing, if it is lost or there was no such round."""
    record = context.state.get(f"{NAME}{round}")
    if isinstance(record, ArrayRecord):
        shapes = {name: (getattr(torch, array.dtype), tuple(array.shape)) for name, array in record.items()}
        return from_record(record, shapes)
    if folder is not None:
        try:
            return load_file(folder / f"{NAME}{round}.safetensors")
        except (FileNotFoundError, SafetensorError):
            pass
    return {}


def save_state(context: Context, folder: Path | None, used: int, round: int, keeps: dict[str, Tensor]) -> None:
    """Keep what this round leaves beside what the server used last, and forget the others."""
    for name in [n for n in context.state if n.startswith(NAME) and n != f"{NAME}{used}"]:
        del context.state[name]
    if not keeps:
        return
    context.state[f"{NAME}{round}"] = to_record(keeps)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / f"{NAME}{round}.safetensors", {name: t.contiguous() for name, t in keeps.items()})
    for path in folder.glob(f"{NAME}*.safetensors"):
        if path.name not in (f"{NAME}{used}.safetensors", f"{NAME}{round}.safetensors"):
            path.unlink(missing_ok=True)
