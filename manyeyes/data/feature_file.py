"""A file of features: rows of float32 that are computed once, chunk by chunk, and checked when they are opened.

    rows.bin    float32 [rows, values], with holes where no chunk is complete
    chunks.bin  12 bytes for each complete chunk: its number, the CRC-32 of its values, the CRC-32 of these two
    about.json  what the features are of, for a reader

A chunk is recorded after its values are on the disk, so that a killed process loses no more than one chunk.
"""

import errno
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Floats, Ints
from manyeyes.io.files import (
    DISK_FULL,
    errors_that_name,
    exclusive_lock,
    make_folder,
    owner_only,
    write_all,
    write_text,
)
from manyeyes.io.portable import pread
from manyeyes.io.steps import announce

CHUNK_ROWS = 256
RECORD = np.dtype([("chunk", "<u4"), ("crc", "<u4"), ("check", "<u4")])
FULL_DISK_FIX = "free some, set XDG_CACHE_HOME to a folder on another disk, or set engine.features=off"
LOCK_SECONDS = 1.0  # between two attempts to lock the file


@dataclass(frozen=True)
class FeatureFile:
    """The features of the images of one source, by their rows."""

    folder: Path
    num_rows: int
    num_values: int  # of a row

    @property
    def rows_path(self) -> Path:
        return self.folder / "rows.bin"

    def chunks_of(self, rows: Ints) -> Ints:
        return np.unique(rows // CHUNK_ROWS)

    def chunk_rows(self, chunk: int) -> Ints:
        return np.arange(chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, self.num_rows))

    def incomplete_chunks(self, rows: Ints) -> list[int]:
        """Return the chunks of these rows that are missing or damaged."""
        recorded = self._read_records()
        if not recorded:
            return self.chunks_of(rows).tolist()
        with self.rows_path.open("rb", buffering=0) as file:
            return [c for c in self.chunks_of(rows).tolist() if recorded.get(c) != self._checksum(file.fileno(), c)]

    def _read_records(self) -> dict[int, int]:
        """Return the checksum of each complete chunk; a record that was cut off is left out."""
        path = self.folder / "chunks.bin"
        if not path.exists() or not self.rows_path.exists():
            return {}
        data = path.read_bytes()
        records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
        complete = [record for record in records if zlib.crc32(record.tobytes()[:8]) == record["check"]]
        return {int(record["chunk"]): int(record["crc"]) for record in complete}

    def _checksum(self, file: int, chunk: int) -> int:
        size = len(self.chunk_rows(chunk)) * self._row_bytes
        return zlib.crc32(pread(file, size, chunk * CHUNK_ROWS * self._row_bytes))

    @property
    def _row_bytes(self) -> int:
        return 4 * self.num_values

    def compute(
        self,
        rows: Ints,
        features_of: Callable[[Ints], Floats],
        about: Mapping[str, Any],
        progress: Callable[[int, int], None],
    ) -> None:
        """Compute the features of these rows that are not in the file, which is locked meanwhile."""
        with owner_only():
            make_folder(self.folder, 0o700)
            with self._lock():
                chunks = self.incomplete_chunks(rows)
                write_text(self.folder / "about.json", json.dumps(about, indent=1, default=str) + "\n")
                with self._open("rows.bin") as values, self._open("chunks.bin") as records:
                    values.truncate(self.num_rows * self._row_bytes)
                    records.seek(records.seek(0, os.SEEK_END) // RECORD.itemsize * RECORD.itemsize)
                    for done, chunk in enumerate(chunks):
                        progress(done, len(chunks))
                        features = np.ascontiguousarray(features_of(self.chunk_rows(chunk)), np.float32)
                        with _disk_errors(self.rows_path):
                            self._write_chunk(values, records, chunk, features.tobytes())

    def _write_chunk(self, values: IO[bytes], records: IO[bytes], chunk: int, data: bytes) -> None:
        values.seek(chunk * CHUNK_ROWS * self._row_bytes)
        write_all(values, data)
        os.fsync(values.fileno())
        head = np.array([chunk, zlib.crc32(data)], "<u4").tobytes()
        write_all(records, head + zlib.crc32(head).to_bytes(4, "little"))
        os.fsync(records.fileno())

    def _open(self, name: str) -> IO[bytes]:
        path = self.folder / name
        path.touch()
        return path.open("r+b", buffering=0)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the file; another process that computes the same features is waited for."""
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(exclusive_lock(self.folder / "features"))
                    break
                except ValueError as error:
                    announce(str(error).partition(":")[0], "waiting for its features")
                    time.sleep(LOCK_SECONDS)
            yield

    def open(self) -> NDArray[np.uint8]:
        """Return the bytes of all rows [N, 1, values, 4], memory-mapped: a source of images for a `FeatureDecoder`."""
        return np.memmap(self.rows_path, np.uint8, "r", shape=(self.num_rows, 1, self.num_values, 4))

    def discard(self) -> None:
        """Forget all features, because they are of other code."""
        with self._lock():
            (self.folder / "chunks.bin").unlink(missing_ok=True)


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise OSError if the disk has no room for this many bytes of features."""
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        sizes = f"{free / 1e6:,.1f} MB are free and features take {num_bytes / 1e6:,.1f} MB"
        raise OSError(errno.ENOSPC, f"{sizes}: {FULL_DISK_FIX}", str(folder))


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Name the file in errors of writing, and say what to do if the disk is full."""
    try:
        with errors_that_name(path):
            yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(error.errno, f"the disk is full: {FULL_DISK_FIX}", str(path)) from error
