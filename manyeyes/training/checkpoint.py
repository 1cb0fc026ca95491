"""Checkpoints: all that a run needs to continue as if it had never stopped, in one safetensors file."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manyeyes.core.state import ServerState
from manyeyes.io.files import atomic_write
from manyeyes.training.client_state import ClientIndex

VERSION = 3
METADATA_KEY = "manyeyes"
CallbackState = Mapping[str, Any]  # tensors, and values that JSON can hold


@dataclass(frozen=True)
class Checkpoint:
    """A state, where the clients' records are, how long the metrics file was, and which run it belongs to."""

    state: ServerState
    clients: ClientIndex
    metrics_bytes: int
    fingerprint: str
    callbacks: Mapping[str, CallbackState] = field(default_factory=dict)


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in one step: a crash leaves the old one."""
    state, clients = checkpoint.state, checkpoint.clients
    tensors = {
        "weights": state.weights,
        **_prefixed("server_optimizer", state.opt_state),
        **_prefixed("privacy", state.privacy_state),
        **_prefixed("aggregator", state.aggregator_state),
        "clients/ids": torch.from_numpy(clients.client_ids),
        "clients/records": torch.from_numpy(clients.records),
    }
    if state.correction_state is not None:
        tensors["correction"] = state.correction_state
    values: dict[str, dict[str, Any]] = {}
    for name, content in checkpoint.callbacks.items():
        found = {key: value for key, value in content.items() if isinstance(value, Tensor)}
        tensors |= _prefixed(f"callbacks/{name}", found)
        values[name] = {key: value for key, value in content.items() if key not in found}
    metadata = {
        "version": VERSION,
        "round": state.round,
        "metrics_bytes": checkpoint.metrics_bytes,
        "fingerprint": checkpoint.fingerprint,
        "clients": clients.layouts,
        "callbacks": values,
    }
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    write_tensors(path, copies, {METADATA_KEY: json.dumps(metadata)})


def load(path: Path, device: torch.device) -> Checkpoint:
    """Read a checkpoint."""
    tensors, metadata = _read(path, device)
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{path} has checkpoint version {metadata.get('version')} and this version of manyeyes reads {VERSION}: "
            "continue the run with the version that began it, or start a new run."
        )
    state = ServerState(
        round=metadata["round"],
        weights=tensors["weights"],
        opt_state=_with_prefix(tensors, "server_optimizer"),
        correction_state=tensors.get("correction"),
        privacy_state={name: tensor.cpu() for name, tensor in _with_prefix(tensors, "privacy").items()},
        aggregator_state=_with_prefix(tensors, "aggregator"),
    )
    layouts = tuple(
        tuple((name, dtype, tuple(shape)) for name, dtype, shape in layout) for layout in metadata["clients"]
    )
    client_ids, records = (np.asarray(tensors[f"clients/{name}"].cpu()) for name in ("ids", "records"))
    callbacks = {
        name: values | _with_prefix(tensors, f"callbacks/{name}") for name, values in metadata["callbacks"].items()
    }
    return Checkpoint(
        state,
        ClientIndex(layouts, client_ids, records),
        metadata["metrics_bytes"],
        metadata["fingerprint"],
        callbacks,
    )


def _read(path: Path, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = json.loads((file.metadata() or {})[METADATA_KEY])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is not a checkpoint of manyeyes or is damaged: start a new run.") from error


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in one step, with the permissions of other new files."""

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata)
        temporary.chmod(mode)  # safetensors creates files that only their owner can read

    try:
        atomic_write(path, write)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(errno.EIO, str(error), str(path)) from error
