"""Checkpoints: all that a run needs to continue as if it had never stopped, in one safetensors file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyeyes.core.state import ServerState
from manyeyes.io.tensors import METADATA_KEY as FILE_METADATA_KEY
from manyeyes.io.tensors import read_tensors, write_tensors

VERSION = 5
UNCHECKED_VERSION = 4  # without checksums, which is still read
METADATA_KEY = "manyeyes"
CallbackState = Mapping[str, Any]  # tensors, and values that JSON can hold


@dataclass(frozen=True)
class Checkpoint:
    """A state, the index of the clients' states, the size of the metrics file, and which run it belongs to.

    `metrics_crc` is the CRC-32 of the metrics file up to that size; a checkpoint of an older version has none.
    """

    state: ServerState
    clients: Tensor
    metrics_bytes: int
    fingerprint: str
    callbacks: Mapping[str, CallbackState] = field(default_factory=dict)
    metrics_crc: int | None = None


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
        "metrics_crc": checkpoint.metrics_crc,
        "fingerprint": checkpoint.fingerprint,
        "callbacks": values,
    }
    write_tensors(path, tensors, {METADATA_KEY: json.dumps(metadata)})


def load(path: Path, device: torch.device) -> Checkpoint:
    damage = f"{path} is not a checkpoint of manyeyes or is damaged: start a new run."
    try:
        tensors, texts, has_checksum = read_tensors(path, device)
        metadata = json.loads(texts[METADATA_KEY])
        version = metadata["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(damage) from error
    if version not in (VERSION, UNCHECKED_VERSION):
        versions = f"checkpoint version {version} and this version of manyeyes reads {VERSION}"
        fix = "continue the run with the version that began it, or start a new run"
        raise ValueError(f"{path} has {versions}: {fix}.")
    if (version == VERSION and not has_checksum) or not _is_valid(metadata, tensors):
        raise ValueError(damage)
    state = ServerState(
        round=metadata["round"],
        weights=tensors["weights"],
        opt_state=_with_prefix(tensors, "server_optimizer"),
        correction_state=tensors.get("correction"),
        privacy_state={name: tensor.cpu() for name, tensor in _with_prefix(tensors, "privacy").items()},
        aggregator_state=_with_prefix(tensors, "aggregator"),
    )
    callbacks = {
        name: values | _with_prefix(tensors, f"callbacks/{name}") for name, values in metadata["callbacks"].items()
    }
    clients, metrics_bytes, metrics_crc = tensors["clients"], metadata["metrics_bytes"], metadata.get("metrics_crc")
    return Checkpoint(state, clients, metrics_bytes, metadata["fingerprint"], callbacks, metrics_crc)


def read_round(path: Path) -> int:
    """Return the round of a checkpoint, without its tensors; a damaged one raises OSError, ValueError, KeyError or TypeError."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(json.loads(header[FILE_METADATA_KEY][METADATA_KEY])["round"])


def _is_valid(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a checkpoint has all that it must have, of the right types."""
    clients, callbacks = tensors.get("clients"), metadata.get("callbacks")
    return (
        all(type(metadata.get(name)) is int and metadata[name] >= 0 for name in ("round", "metrics_bytes"))
        and isinstance(metadata.get("fingerprint"), str)
        and isinstance(callbacks, dict)
        and all(isinstance(values, dict) for values in callbacks.values())
        and "weights" in tensors
        and clients is not None
        and (clients.dtype, clients.shape[1:]) == (torch.int64, (4,))
    )


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
