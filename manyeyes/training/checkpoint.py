"""Checkpoints: all that a run needs to go on as if it had never stopped, in one safetensors file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from manyeyes.core.state import ServerState
from manyeyes.training.client_state import Index
from manyeyes.training.tensors import write_tensors

VERSION = 2


@dataclass(frozen=True)
class Checkpoint:
    """A state, where the clients' records are, how far the metrics file went, and what the run is a run of."""

    state: ServerState
    clients: Index
    metrics_bytes: int
    fingerprint: str


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write the whole checkpoint or leave the old one."""
    state = checkpoint.state
    tensors = {"weights": state.weights} | {f"server/{name}": t for name, t in state.opt_state.items()}
    tensors |= {f"privacy/{name}": t for name, t in state.privacy_state.items()}
    if state.correction_state is not None:
        tensors["correction"] = state.correction_state
    clients = checkpoint.clients
    tensors |= {"clients/keys": torch.from_numpy(clients.keys), "clients/records": torch.from_numpy(clients.records)}
    about = {
        "version": VERSION,
        "round": state.round,
        "metrics_bytes": checkpoint.metrics_bytes,
        "fingerprint": checkpoint.fingerprint,
        "clients": clients.kinds,
    }
    whole = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
    write_tensors(path, whole, {"manyeyes": json.dumps(about)})


def load(path: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint back."""
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            about = json.loads((file.metadata() or {})["manyeyes"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is not a checkpoint of this program, or is damaged: start the run anew") from error
    if about["version"] != VERSION:
        raise ValueError(f"{path} has checkpoint version {about['version']}, and this program reads {VERSION}")
    server: dict[str, Tensor] = {}
    privacy: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "server":
            server[rest] = tensor
        elif kind == "privacy":
            privacy[rest] = tensor.cpu()  # few numbers, which the host reads
    state = ServerState(about["round"], tensors["weights"], server, tensors.get("correction"), privacy)
    kinds = tuple(tuple((name, dtype, tuple(shape)) for name, dtype, shape in kind) for kind in about["clients"])
    keys, records = (np.asarray(tensors[f"clients/{name}"].cpu()) for name in ("keys", "records"))
    return Checkpoint(state, Index(kinds, keys, records), about["metrics_bytes"], about["fingerprint"])
