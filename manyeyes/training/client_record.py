"""Records: the state that a client keeps as bytes of a known layout, and the index of all records."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ClientState = dict[str, Tensor]
Layout = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype and shape of each tensor of a record


@dataclass(frozen=True)
class Record:
    """Where the record of a client is in the file."""

    layout: int
    offset: int
    checksum: int


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """All records that a checkpoint refers to, and their layouts."""

    layouts: tuple[Layout, ...] = ()
    client_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    records: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))  # the fields of `Record`

    @staticmethod
    def of_records(layouts: list[Layout], records: dict[int, Record]) -> ClientIndex:
        rows = [(record.layout, record.offset, record.checksum) for record in records.values()]
        client_ids = np.fromiter(records, np.int64, len(records))
        return ClientIndex(tuple(layouts), client_ids, np.array(rows, np.int64).reshape(len(rows), 3))

    def as_records(self) -> dict[int, Record]:
        """Return the records by client id."""
        return {k: Record(*row) for k, row in zip(self.client_ids.tolist(), self.records.tolist(), strict=True)}


def layout_of(state: ClientState) -> Layout:
    """Return the layout of the record of a state."""
    return tuple((name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in state.items())


def layout_bytes(layout: Layout) -> int:
    """Return the size of a record of this layout."""
    return sum(math.prod(shape) * _dtype(dtype).itemsize for _, dtype, shape in layout)


def state_bytes(state: ClientState) -> int:
    """Return how much memory a state takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def pack(state: ClientState) -> bytes:
    """Return a state as the bytes of its record."""
    return b"".join(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in state.values())


def unpack(layout: Layout, data: bytes, device: torch.device) -> ClientState:
    """Return the state of a record."""
    buffer, offset, state = bytearray(data), 0, {}
    for name, dtype, shape in layout:
        count = math.prod(shape)
        values = torch.frombuffer(buffer, dtype=_dtype(dtype), count=count, offset=offset)
        state[name] = values.view(shape).clone().to(device)  # a copy: the offset may not be aligned
        offset += count * _dtype(dtype).itemsize
    return state


def checksum(client_id: int, data: bytes) -> int:
    """Return the checksum of a client's record, which differs from that of the same record of another client."""
    return zlib.crc32(data, zlib.crc32(str(client_id).encode()))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"a record has a tensor of the unknown type {name}"
    return dtype
