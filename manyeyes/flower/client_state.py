"""Client state between rounds, stored by the client: in its Flower context and, with `state_dir`, in files.

With each task the server says which round of this client it used last, and the client continues from the state after
that round. A reply that was lost, late or repeated therefore has no effect, and at most two states are stored.
"""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyeyes.flower.wire import from_record, to_record
from manyeyes.training.checkpoint import write_tensors

PREFIX = "state-"  # then the round


def load_state(context: Context, folder: Path | None, round: int) -> dict[str, Tensor]:
    """Return the state after a round; empty if it is lost or there was no such round."""
    record = context.state.get(f"{PREFIX}{round}")
    if isinstance(record, ArrayRecord):
        specs = {name: (getattr(torch, array.dtype), tuple(array.shape)) for name, array in record.items()}
        return from_record(record, specs)
    if folder is not None:
        try:
            return load_file(folder / f"{PREFIX}{round}.safetensors")
        except (FileNotFoundError, SafetensorError):
            pass
    return {}


def save_state(context: Context, folder: Path | None, used_round: int, round: int, state: dict[str, Tensor]) -> None:
    """Store the state after a round next to that of the round which the server used last, and delete all others."""
    for name in [n for n in context.state if n.startswith(PREFIX) and n != f"{PREFIX}{used_round}"]:
        del context.state[name]
    if not state:
        return
    context.state[f"{PREFIX}{round}"] = to_record(state)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / f"{PREFIX}{round}.safetensors", {name: t.contiguous() for name, t in state.items()})
    for path in folder.glob(f"{PREFIX}*.safetensors"):
        if path.name not in (f"{PREFIX}{used_round}.safetensors", f"{PREFIX}{round}.safetensors"):
            path.unlink(missing_ok=True)
