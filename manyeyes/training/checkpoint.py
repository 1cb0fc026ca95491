"""Checkpoints: all that a run needs to continue as if it had never stopped, in one safetensors file."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manyeyes.core.state import ServerState
from manyeyes.io.files import atomic_write

VERSION = 4
METADATA_KEY = "manyeyes"
CallbackState = Mapping[str, Any]  # tensors, and values that JSON can hold


@dataclass(frozen=True)
class Checkpoint:
    """A state, the index of the clients' states, the size of the metrics file, and which run it belongs to."""

    state: ServerState
    clients: Tensor
    metrics_bytes: int
    fingerprint: str
    callbacks: Mapping[str, CallbackState] = field(default_factory=dict)


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in one step: a crash leaves the old one."""
    state = checkpoint.state
    tensors = {
        "weights": state.weights,
        "clients": checkpoint.clients,
        **_prefixed("server_optimizer", state.opt_state),
        **_prefixed("privacy", state.privacy_state),
        **_prefixed("aggregator", state.aggregator_state),
    }
    if state.correction_state is not None:
        tensors["correction"] = state.correction_state
    values: dict[str, CallbackState] = {}
    for name, callback in checkpoint.callbacks.items():
        tensors |= _prefixed(f"callbacks/{name}", {k: v for k, v in callback.items() if isinstance(v, Tensor)})
        values[name] = {k: v for k, v in callback.items() if not isinstance(v, Tensor)}
    metadata = {
        "version": VERSION,
        "round": state.round,
        "metrics_bytes": checkpoint.metrics_bytes,
        "fingerprint": checkpoint.fingerprint,
        "callbacks": values,
    }
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    write_tensors(path, copies, {METADATA_KEY: json.dumps(metadata)})


def load(path: Path, device: torch.device) -> Checkpoint:
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = json.loads((file.metadata() or {})[METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is not a checkpoint of manyeyes or is damaged: start a new run.") from error
    if metadata.get("version") != VERSION:
        versions = f"checkpoint version {metadata.get('version')} and this version of manyeyes reads {VERSION}"
        fix = "continue the run with the version that began it, or start a new run"
        raise ValueError(f"{path} has {versions}: {fix}.")
    state = ServerState(
        round=metadata["round"],
        weights=tensors["weights"],
        opt_state=_with_prefix(tensors, "server_optimizer"),
        correction_state=tensors.get("correction"),
        privacy_state={name: tensor.cpu() for name, tensor in _with_prefix(tensors, "privacy").items()},
        aggregator_state=_with_prefix(tensors, "aggregator"),
    )
    values = metadata["callbacks"]
    callbacks = {name: values[name] | _with_prefix(tensors, f"callbacks/{name}") for name in values}
    return Checkpoint(state, tensors["clients"], metadata["metrics_bytes"], metadata["fingerprint"], callbacks)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in one step, with the permissions of other new files."""

    def write(temp_path: Path) -> None:
        temp_path.touch()
        mode = temp_path.stat().st_mode
        save_file(tensors, temp_path, metadata)
        temp_path.chmod(mode)  # safetensors creates files that only their owner can read

    try:
        atomic_write(path, write)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(errno.EIO, str(error), str(path)) from error
