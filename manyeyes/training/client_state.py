"""What clients keep between rounds: in memory while that is small, else in one file, and always part of the checkpoint.

The file is records of a fixed size for each kind of content. A record that the last checkpoint counts on is never
written over: a client's new one goes into a free place, and the old place becomes free when the next checkpoint is on
disk. So whatever moment a process dies at, the file still holds all that its checkpoint says. A checkpoint costs what
has changed since the last one, and 32 bytes a client for the index.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ClientState = dict[str, Tensor]
Layout = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape of each tensor of a record


@dataclass(frozen=True)
class Record:
    """Where in the file a client's record is."""

    kind: int
    offset: int
    crc: int


@dataclass(frozen=True, eq=False)
class Index:
    """All records that a checkpoint counts on; `kinds` says what is in them."""

    kinds: tuple[Layout, ...] = ()
    keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    # kind, place and checksum of each
    records: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))

    def sizes(self) -> list[int]:
        return [_size(kind) for kind in self.kinds]


class ClientStateStore(MutableMapping[int, ClientState]):
    """What each client keeps, by its key; `most` bytes of it stay in memory, and more than that goes into the file.

    Without a path the file is a temporary one. A record that does not have its checksum is told on standard error, and
    its client is then one that has kept nothing.
    """

    def __init__(self, path: Path | None, device: torch.device, most: int) -> None:
        self._path, self._device, self._most = path, device, most
        self._file: IO[bytes] | None = None  # made when it is first written
        self._kinds: list[Layout] = []
        self._records: dict[int, Record] = {}
        self._memory: dict[int, ClientState] = {}
        self._bytes = 0  # in memory
        self._changed: set[int] = set()  # in memory and not in the file
        self._fresh: set[int] = set()  # places that no checkpoint counts on
        self._stale: list[Record] = []  # which only checkpoints count on
        self._free: dict[int, list[int]] = {}  # places, by the size of a record
        self._end = 0

    @staticmethod
    def open(path: Path, index: Index, device: torch.device, most: int, writes: bool = True) -> ClientStateStore:
        """Go on from a checkpoint; a process that does not write works on a copy."""
        if not path.exists() and len(index.keys):
            raise ValueError(f"{path} is not there, and the checkpoint counts on it: bring it back, or start anew")
        found = ClientStateStore(path if writes else None, device, most)
        if not len(index.keys):
            return found
        if writes:
            found._file = path.open("r+b", buffering=0)
        else:
            with path.open("rb") as file:
                shutil.copyfileobj(file, found._opened, 2**24)
        found._kinds = list(index.kinds)
        found._records = {k: Record(*r) for k, r in zip(index.keys.tolist(), index.records.tolist(), strict=True)}
        found._compact(index)
        return found

    def __getitem__(self, key: int) -> ClientState:
        if key in self._memory:
            return self._memory[key]
        record = self._records[key]
        size = _size(self._kinds[record.kind])
        data = os.pread(self._opened.fileno(), size, record.offset)
        if _checksum(key, data) != record.crc:
            print(
                f"what client {key} kept is damaged in {self._path}: it starts again from the shared model",
                file=sys.stderr,
            )
            del self[key]
            raise KeyError(key)
        kept = _unpacked(self._kinds[record.kind], data, self._device)
        if self._bytes + size <= self._most:
            self._memory[key] = kept
            self._bytes += size
        return kept

    def __setitem__(self, key: int, kept: ClientState) -> None:
        self._bytes -= _bytes(self._memory.pop(key, {}))
        if self._bytes + _bytes(kept) <= self._most:
            self._memory[key] = kept
            self._bytes += _bytes(kept)
            self._changed.add(key)
            return
        self._write(key, kept)
        self._changed.discard(key)

    def __delitem__(self, key: int) -> None:
        if key not in self:
            raise KeyError(key)
        self._bytes -= _bytes(self._memory.pop(key, {}))
        self._changed.discard(key)
        if key in self._records:
            self._release(self._records.pop(key))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._records.keys() | self._memory.keys()))

    def __len__(self) -> int:
        return len(self._records.keys() | self._memory.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._memory or key in self._records

    def flush(self) -> Index:
        """Bring all to disk, and say where it is; neither these places nor the last checkpoint's are written over."""
        for key in sorted(self._changed):
            self._write(key, self._memory[key])
        self._changed.clear()
        self._fresh.clear()
        if self._path is not None and self._file is not None:
            os.fsync(self._file.fileno())
        count = len(self._records)
        keys = np.fromiter(self._records, np.int64, count)
        records = np.array([(r.kind, r.offset, r.crc) for r in self._records.values()], np.int64).reshape(count, 3)
        return Index(tuple(self._kinds), keys, records)

    def commit(self) -> None:
        """The checkpoint with the last index is on disk: places that only older ones counted on are free."""
        for record in self._stale:
            self._free.setdefault(_size(self._kinds[record.kind]), []).append(record.offset)
        self._stale.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> IO[bytes]:
        if self._file is None:
            path = self._path
            self._file = path.open("w+b", buffering=0) if path else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        return self._file

    def _write(self, key: int, kept: ClientState) -> None:
        """A record into the place that is already this client's, if no checkpoint counts on it, or into a free one."""
        kind = tuple((name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in kept.items())
        if kind not in self._kinds:
            self._kinds.append(kind)
        number, data = self._kinds.index(kind), _packed(kept)
        before = self._records.get(key)
        if before is not None and before.offset in self._fresh and before.kind == number:
            place = before.offset
        else:
            place = self._take(len(data))
            if before is not None:
                self._release(before)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._opened.fileno(), memoryview(data)[written:], place + written)
        except OSError as error:  # such as a full disk: say of which file
            raise OSError(error.errno, error.strerror, str(self._path or tempfile.gettempdir())) from error
        self._fresh.add(place)
        self._records[key] = Record(number, place, _checksum(key, data))

    def _take(self, size: int) -> int:
        if self._free.get(size):
            return self._free[size].pop()
        self._end += size
        return self._end - size

    def _release(self, record: Record) -> None:
        if record.offset in self._fresh:
            self._fresh.discard(record.offset)
            self._free.setdefault(_size(self._kinds[record.kind]), []).append(record.offset)
        else:
            self._stale.append(record)

    def _compact(self, index: Index) -> None:
        """Cut off what a crash has left behind the last record, and find the free places between the others."""
        sizes = np.array(index.sizes(), np.int64)
        order = np.argsort(index.records[:, 1])
        starts = index.records[order, 1]
        ends = starts + (sizes[index.records[order, 0]] if len(starts) else 0)
        self._end = int(ends[-1]) if len(ends) else 0
        if os.fstat(self._opened.fileno()).st_size > self._end:
            self._opened.truncate(self._end)
        befores = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        for gap in np.flatnonzero(starts > befores).tolist():
            place, left = int(befores[gap]), int(starts[gap] - befores[gap])
            for size in sorted(set(sizes.tolist()), reverse=True):
                while 0 < size <= left:
                    self._free.setdefault(size, []).append(place)
                    place, left = place + size, left - size


def _size(kind: Layout) -> int:
    return sum(int(np.prod(shape)) * _dtype(dtype).itemsize for _, dtype, shape in kind)


def _bytes(kept: ClientState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())


def _dtype(name: str) -> torch.dtype:
    found: Any = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _packed(kept: ClientState) -> bytes:
    return b"".join(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in kept.values())


def _unpacked(kind: Layout, data: bytes, device: torch.device) -> ClientState:
    buffer, place, kept = bytearray(data), 0, {}
    for name, dtype, shape in kind:
        count = int(np.prod(shape))
        flat = torch.frombuffer(buffer, dtype=_dtype(dtype), count=count, offset=place)
        kept[name] = flat.view(shape).clone().to(device)  # a copy of its own, wherever it begins in the record
        place += count * _dtype(dtype).itemsize
    return kept


def _checksum(key: int, data: bytes) -> int:
    """Of the record of this client: another's in its place is wrong too."""
    return zlib.crc32(data, zlib.crc32(str(key).encode()))
