"""The states that clients keep between rounds: in memory while they are small, else in one file of the run folder.

The file has records of a fixed size for each layout. A record that the last checkpoint refers to is never overwritten:
the client's new record goes to a free offset, and the old offset becomes free once the next checkpoint is on disk. So
the file always has everything that its checkpoint refers to, whenever a process dies. A checkpoint writes only what has
changed since the last one, and 32 bytes per client for the index.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

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


COPY_BYTES = 2**24  # that are copied at a time


class ClientStateStore(MutableMapping[int, ClientState]):
    """The state of each client, by client id; up to `max_bytes` stay in memory, and the rest is in the file.

    Without a path the file is a temporary one. A record with a wrong checksum is reported on standard error, and its
    client starts again without a state.
    """

    def __init__(self, path: Path | None, device: torch.device, max_bytes: int) -> None:
        self._path, self._device, self._max_bytes = path, device, max_bytes
        self._open_file: IO[bytes] | None = None  # created when the first record is written
        self._layouts: list[Layout] = []
        self._records: dict[int, Record] = {}
        self._cache: dict[int, ClientState] = {}
        self._cache_bytes = 0
        self._unwritten: set[int] = set()  # client ids of states that are only in the cache
        self._uncommitted: set[int] = set()  # offsets of records that no checkpoint refers to
        self._replaced: list[Record] = []  # that only checkpoints refer to
        self._free: dict[int, list[int]] = {}  # offsets by the size of a record
        self._end = 0

    @staticmethod
    def open(
        path: Path, index: ClientIndex, device: torch.device, max_bytes: int, writes: bool = True
    ) -> ClientStateStore:
        """Continue from a checkpoint; a process that does not write works on a copy of the file."""
        if not path.exists() and len(index.client_ids):
            raise ValueError(
                f"{path} is missing and the checkpoint refers to it: restore the file, or start a new run."
            )
        store = ClientStateStore(path if writes else None, device, max_bytes)
        if not len(index.client_ids):
            return store
        if writes:
            store._open_file = path.open("r+b", buffering=0)
        else:
            with path.open("rb") as file:
                shutil.copyfileobj(file, store._file, COPY_BYTES)
        store._layouts = list(index.layouts)
        store._records = index.as_records()
        store._find_free_offsets(index)
        return store

    def __getitem__(self, client_id: int) -> ClientState:
        if client_id in self._cache:
            return self._cache[client_id]
        record = self._records[client_id]
        layout = self._layouts[record.layout]
        size = layout_bytes(layout)
        data = os.pread(self._file.fileno(), size, record.offset)
        if checksum(client_id, data) != record.checksum:
            print(
                f"The state of client {client_id} in {self._path} is damaged: the client starts again from the shared "
                "model.",
                file=sys.stderr,
            )
            del self[client_id]
            raise KeyError(client_id)
        state = unpack(layout, data, self._device)
        if self._cache_bytes + size <= self._max_bytes:
            self._cache[client_id] = state
            self._cache_bytes += size
        return state

    def __setitem__(self, client_id: int, state: ClientState) -> None:
        self._cache_bytes -= state_bytes(self._cache.pop(client_id, {}))
        if self._cache_bytes + state_bytes(state) <= self._max_bytes:
            self._cache[client_id] = state
            self._cache_bytes += state_bytes(state)
            self._unwritten.add(client_id)
            return
        self._write(client_id, state)
        self._unwritten.discard(client_id)

    def __delitem__(self, client_id: int) -> None:
        if client_id not in self:
            raise KeyError(client_id)
        self._cache_bytes -= state_bytes(self._cache.pop(client_id, {}))
        self._unwritten.discard(client_id)
        if client_id in self._records:
            self._release(self._records.pop(client_id))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._records.keys() | self._cache.keys()))

    def __len__(self) -> int:
        return len(self._records.keys() | self._cache.keys())

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._cache or client_id in self._records

    def flush(self) -> ClientIndex:
        """Write all states to disk and return their index, for a checkpoint."""
        for client_id in sorted(self._unwritten):
            self._write(client_id, self._cache[client_id])
        self._unwritten.clear()
        self._uncommitted.clear()
        if self._path is not None and self._open_file is not None:
            os.fsync(self._open_file.fileno())
        return ClientIndex.of_records(self._layouts, self._records)

    def commit(self) -> None:
        """The checkpoint with the last index is on disk: free what only older checkpoints referred to."""
        for record in self._replaced:
            self._add_free(record)
        self._replaced.clear()

    def close(self) -> None:
        if self._open_file is not None:
            self._open_file.close()

    @property
    def _file(self) -> IO[bytes]:
        if self._open_file is None:
            self._open_file = (
                self._path.open("w+b", buffering=0) if self._path else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            )
        return self._open_file

    def _write(self, client_id: int, state: ClientState) -> None:
        """Write a record over the client's last one if no checkpoint refers to it, else to a free offset."""
        layout = layout_of(state)
        if layout not in self._layouts:
            self._layouts.append(layout)
        number, data = self._layouts.index(layout), pack(state)
        old = self._records.get(client_id)
        if old is not None and old.offset in self._uncommitted and old.layout == number:
            offset = old.offset
        else:
            offset = self._take_offset(len(data))
            if old is not None:
                self._release(old)
        self._write_bytes(data, offset)
        self._uncommitted.add(offset)
        self._records[client_id] = Record(number, offset, checksum(client_id, data))

    def _write_bytes(self, data: bytes, offset: int) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file.fileno(), memoryview(data)[written:], offset + written)
        except OSError as error:  # such as a full disk, which names no file
            raise OSError(error.errno, error.strerror, str(self._path or tempfile.gettempdir())) from error

    def _take_offset(self, size: int) -> int:
        if self._free.get(size):
            return self._free[size].pop()
        self._end += size
        return self._end - size

    def _release(self, record: Record) -> None:
        if record.offset in self._uncommitted:
            self._uncommitted.discard(record.offset)
            self._add_free(record)
        else:
            self._replaced.append(record)

    def _add_free(self, record: Record) -> None:
        self._free.setdefault(layout_bytes(self._layouts[record.layout]), []).append(record.offset)

    def _find_free_offsets(self, index: ClientIndex) -> None:
        """Cut off what a crash left after the last record, and find the gaps between records."""
        sizes = np.array([layout_bytes(layout) for layout in index.layouts], np.int64)
        order = np.argsort(index.records[:, 1])
        starts = index.records[order, 1]
        ends = starts + sizes[index.records[order, 0]]
        self._end = int(ends[-1])
        if os.fstat(self._file.fileno()).st_size > self._end:
            self._file.truncate(self._end)
        previous_ends = np.concatenate([[0], ends[:-1]])
        for gap in np.flatnonzero(starts > previous_ends).tolist():
            self._divide_gap(int(previous_ends[gap]), int(starts[gap]), sorted(set(sizes.tolist()), reverse=True))

    def _divide_gap(self, start: int, end: int, sizes: list[int]) -> None:
        """Divide a gap into offsets for records, the largest first."""
        for size in sizes:
            while 0 < size <= end - start:
                self._free.setdefault(size, []).append(start)
                start += size
