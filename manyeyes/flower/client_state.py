"""Client state between rounds, stored by the client: in its Flower context and, with `state_dir`, in files.

With each task the server says which round of this client it used last, and the client continues from the state after
that round. A reply that was lost, late or repeated therefore has no effect, and at most two states are stored.
"""

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context

from manyeyes.core.state import ClientState
from manyeyes.flower.messages import from_record, to_record
from manyeyes.io.files import owner_only
from manyeyes.io.tensors import read_tensors, write_tensors

PREFIX = "state-"  # then the round


def load_state(context: Context, task: dict[str, Any], device: torch.device) -> ClientState:
    """Return the state after the last round of a task; empty if it is lost or there was no such round."""
    name, folder = f"{PREFIX}{task['last_round']}", _folder(context, task)
    record = context.state.get(name)
    if isinstance(record, ArrayRecord):
        specs = {name: (getattr(torch, array.dtype), tuple(array.shape)) for name, array in record.items()}
        return from_record(record, specs, device)
    try:
        return {} if folder is None else read_tensors(folder / f"{name}.safetensors", device).tensors
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{error}: restore the file, or delete it to start again from the shared model.") from error


def save_state(context: Context, task: dict[str, Any], state: ClientState) -> None:
    """Store the state after a task's round next to that of the round which the server used last; delete all others."""
    name, folder = f"{PREFIX}{task['round']}", _folder(context, task)
    used_names = (name, f"{PREFIX}{task['last_round']}")
    for stored in [stored for stored in context.state if stored.startswith(PREFIX) and stored not in used_names]:
        del context.state[stored]
    if not state:
        return
    context.state[name] = to_record(state)
    if folder is None:
        return
    with owner_only():
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / f"{name}.safetensors", state)
    for path in folder.glob(f"{PREFIX}*.safetensors"):
        if path.stem not in used_names:
            path.unlink(missing_ok=True)


def _folder(context: Context, task: dict[str, Any]) -> Path | None:
    """Return the folder for state that outlives the node's process, if the node config has a `state_dir`."""
    state_dir = context.node_config.get("state_dir")
    return None if state_dir is None else Path(str(state_dir), task["run"], str(task["client_id"]))
