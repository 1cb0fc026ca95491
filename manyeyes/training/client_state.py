"""The states that clients keep between rounds: in memory while they are small, else in one file of the run folder.

A record that the last checkpoint refers to is never overwritten: the client's new record goes to a free offset, and the
old offset becomes free once the next checkpoint is on disk. So the file always has everything that its checkpoint refers
to, whenever a process dies. A checkpoint writes only the states that changed, and 32 bytes per client for the index.
"""

import os
import shutil
import sys
import zlib
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from manyeyes.core.state import ClientState
from manyeyes.io.files import errors_that_name, sync_folder
from manyeyes.io.portable import pread

COPY_BYTES = 2**24  # that are copied at a time


class Record(NamedTuple):
    """Where the state of a client is in the file."""

    client_id: int
    offset: int
    size: int
    checksum: int


def state_bytes(state: ClientState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def pack(state: ClientState) -> bytes:
    """Return a state as the bytes of its record; states with the same names, types and shapes have the same size."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    return safetensors.torch.save(tensors)


def checksum(client_id: int, data: bytes) -> int:
    """Return the checksum of a client's record, which differs from that of the same record of another client."""
    return zlib.crc32(data, zlib.crc32(str(client_id).encode()))


class ClientStateStore(MutableMapping[int, ClientState]):
    """The state of each client, by client id; up to `max_bytes` stay in memory, and the rest is in the file.

    Without a path the file is a temporary one. A record with a wrong checksum is reported on standard error, and its
    client starts again without a state.
    """

    def __init__(
        self, path: Path | None, device: torch.device, max_bytes: int, index: Tensor | None = None, writes: bool = True
    ) -> None:
        """Continue from a checkpoint with this index; a process that does not write works on a copy of the file."""
        self._path, self._device, self._max_bytes = path if writes else None, device, max_bytes
        self._open_file: IO[bytes] | None = None  # created when the first record is written
        self._records: dict[int, Record] = {}
        self._cache: dict[int, ClientState] = {}
        self._cache_bytes = 0
        self._unwritten: set[int] = set()  # client ids of states that are only in the cache
        self._uncommitted: set[int] = set()  # offsets of records that no checkpoint refers to
        self._replaced: list[Record] = []  # that only checkpoints refer to
        self._free: dict[int, list[int]] = {}  # offsets by the size of a record
        self._end = 0
        if path is None or index is None or not len(index):
            return
        if not path.exists():
            raise ValueError(f"{path} is missing and the checkpoint refers to it: restore the file or start a new run.")
        if writes:
            self._open_file = path.open("r+b", buffering=0)
        else:
            with path.open("rb") as file:
                shutil.copyfileobj(file, self._file, COPY_BYTES)
        self._records = {row[0]: Record(*row) for row in index.tolist()}
        self._find_free_offsets()

    def __getitem__(self, client_id: int) -> ClientState:
        if client_id in self._cache:
            return self._cache[client_id]
        record = self._records[client_id]
        data = pread(self._file.fileno(), record.size, record.offset)
        if checksum(client_id, data) != record.checksum:
            damage = f"The state of client {client_id} in {self._path} is damaged"
            print(f"{damage}: the client starts again from the shared model.", file=sys.stderr)
            del self[client_id]
            raise KeyError(client_id)
        state = {name: tensor.to(self._device) for name, tensor in safetensors.torch.load(data).items()}
        self._add_to_cache(client_id, state)
        return state

    def __setitem__(self, client_id: int, state: ClientState) -> None:
        self._remove_from_cache(client_id)
        if self._add_to_cache(client_id, state):
            self._unwritten.add(client_id)
        else:
            self._write(client_id, state)

    def __delitem__(self, client_id: int) -> None:
        if client_id not in self:
            raise KeyError(client_id)
        self._remove_from_cache(client_id)
        if client_id in self._records:
            self._release(self._records.pop(client_id))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._records.keys() | self._cache.keys()))

    def __len__(self) -> int:
        return len(self._records.keys() | self._cache.keys())

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._cache or client_id in self._records

    def flush(self) -> Tensor:
        """Write all states to disk and return the index of all records, for a checkpoint."""
        for client_id in sorted(self._unwritten):
            self._write(client_id, self._cache[client_id])
        self._unwritten.clear()
        self._uncommitted.clear()
        if self._path is not None and self._open_file is not None:
            with errors_that_name(self._path):
                os.fsync(self._open_file.fileno())
        return torch.tensor(list(self._records.values()), dtype=torch.int64).view(-1, 4)

    def commit(self) -> None:
        """The checkpoint with the last index is on disk: free what only older checkpoints referred to."""
        for record in self._replaced:
            self._free.setdefault(record.size, []).append(record.offset)
        self._replaced.clear()

    def close(self) -> None:
        if self._open_file is not None:
            self._open_file.close()

    @property
    def _file(self) -> IO[bytes]:
        if self._open_file is None and self._path is not None:
            self._open_file = self._path.open("w+b", buffering=0)
            sync_folder(self._path.parent)  # a checkpoint must not be there without it
        elif self._open_file is None:
            self._open_file = TemporaryFile(buffering=0)  # noqa: SIM115
        return self._open_file

    def _add_to_cache(self, client_id: int, state: ClientState) -> bool:
        """Keep a state in memory and return True, if there is space for it."""
        size = state_bytes(state)
        if self._cache_bytes + size > self._max_bytes:
            return False
        self._cache[client_id] = state
        self._cache_bytes += size
        return True

    def _remove_from_cache(self, client_id: int) -> None:
        self._cache_bytes -= state_bytes(self._cache.pop(client_id, {}))
        self._unwritten.discard(client_id)

    def _write(self, client_id: int, state: ClientState) -> None:
        """Write a record to a free offset: that of the client's last record if no checkpoint refers to it."""
        data = pack(state)
        if client_id in self._records:
            self._release(self._records[client_id])
        if self._free.get(len(data)):
            offset = self._free[len(data)].pop()
        else:
            offset, self._end = self._end, self._end + len(data)
        written = 0
        with errors_that_name(self._path or Path(gettempdir())):
            while written < len(data):
                written += os.pwrite(self._file.fileno(), memoryview(data)[written:], offset + written)
        self._uncommitted.add(offset)
        self._records[client_id] = Record(client_id, offset, len(data), checksum(client_id, data))

    def _release(self, record: Record) -> None:
        """Free the offset of a record that has been replaced; after the next checkpoint if the last refers to it."""
        if record.offset in self._uncommitted:
            self._uncommitted.discard(record.offset)
            self._free.setdefault(record.size, []).append(record.offset)
        else:
            self._replaced.append(record)

    def _find_free_offsets(self) -> None:
        """Divide the gaps between records into offsets for new ones, and cut off what a crash left after the last."""
        sizes = sorted({record.size for record in self._records.values()}, reverse=True)
        for record in sorted(self._records.values(), key=lambda record: record.offset):
            for size in sizes:
                while size <= record.offset - self._end:
                    self._free.setdefault(size, []).append(self._end)
                    self._end += size
            self._end = record.offset + record.size
        if os.fstat(self._file.fileno()).st_size > self._end:
            self._file.truncate(self._end)
