"""Tensor files in safetensors format with a checksum: a file that has changed since it was written is refused."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from manyeyes.io.files import errors_that_name, write_bytes

METADATA_KEY = "__metadata__"  # of the format
CHECKSUM_KEY = "crc32"  # in the metadata of a file


class TensorFile(NamedTuple):
    """The content of a tensor file; one of another program has no checksum."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    has_checksum: bool


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Return the CRC-32 of all that a file says: metadata, and the name, type, shape and values of each tensor."""
    crc = zlib.crc32(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode(), crc)
        if tensor.numel():
            crc = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file in one step, with a checksum.

    `safetensors.torch.save_file` is not used: a killed process leaves a file of a random name, and errors have no number.
    """
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    checked = dict(metadata or {})
    checked[CHECKSUM_KEY] = f"{checksum(copies, checked):08x}"

    write_bytes(path, with_sorted_metadata(save(copies, checked)))


def with_sorted_metadata(data: bytes) -> bytes:
    """Return a safetensors file with its metadata in order; the library writes it in a random one."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header[METADATA_KEY] = dict(sorted(header[METADATA_KEY].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[8 + size :]))


def read_tensors(path: Path, device: torch.device | None = None) -> TensorFile:
    """Return the content of a safetensors file; raise ValueError if it is damaged or not such a file."""
    try:
        with errors_that_name(path), safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error})") from error
    expected = metadata.pop(CHECKSUM_KEY, None)
    if expected is not None and expected != f"{checksum(tensors, metadata):08x}":
        raise ValueError(f"{path} is damaged: its content does not have its checksum")
    if device is not None:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return TensorFile(tensors, metadata, expected is not None)
