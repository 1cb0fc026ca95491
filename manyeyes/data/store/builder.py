"""A store that is being made: its images so far, and a journal of the chunks that are safe on the disk."""

import io
import json
import os
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.data.store.chunks import Chunk
from manyeyes.io.files import write_text

VERSION = 1  # of the format; a store of another is not opened
IMAGES = {"raw": "images.npy", "jpeg": "images.jpegs"}


@dataclass
class StoreBuilder:
    """The folder `.NAME.preparing` beside the store; only what its journal names counts."""

    folder: Path
    encoding: str
    metadata: dict[str, Any]  # what is being made; a folder in which something else was begun is emptied
    done: list[dict[str, Any]] = field(default_factory=list)  # one for each finished chunk

    @property
    def store(self) -> Path:
        """What becomes the store."""
        return self.folder / "store"

    @property
    def images(self) -> Path:
        return self.store / IMAGES[self.encoding]

    @property
    def wal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def end(self) -> int:
        """Where the images so far end."""
        return int(self.done[-1]["end"]) if self.done else len(self._head())

    @property
    def crc(self) -> int:
        """The checksum of the images so far."""
        return int(self.done[-1]["crc"]) if self.done else zlib.crc32(self._head())

    def resume(self) -> None:
        """Find what was finished before, and cut off what was not."""
        lines = _whole_lines(self.wal)
        if not lines or lines[0] != self.metadata or not self.images.exists():
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir()
            self.images.write_bytes(self._head())
            lines = [self.metadata]
        self.done = [line for line in lines[1:] if line["end"] <= self.images.stat().st_size]
        os.truncate(self.images, self.end)  # first, as it makes room on a disk that is full
        text = "".join(json.dumps(line) + "\n" for line in [self.metadata, *self.done])
        write_text(self.wal, text)

    def add(self, chunk: Chunk) -> None:
        """Put a chunk behind the others; it counts when its bytes are on the disk."""
        end = self.end
        with self.images.open("r+b") as file:
            file.seek(end)
            file.write(chunk.data)
            file.flush()
            os.fsync(file.fileno())
        line: dict[str, Any] = {"end": end + len(chunk.data), "crc": zlib.crc32(chunk.data, self.crc)}
        line |= {"left_out": chunk.left_out, "notes": chunk.notes}
        if self.encoding == "jpeg":
            line["lengths"] = chunk.lengths
        with self.wal.open("a") as journal:
            journal.write(json.dumps(line) + "\n")
        self.done.append(line)

    def _head(self) -> bytes:
        if self.encoding == "jpeg":
            return b""
        shape = (self.metadata["images"], *self.metadata["shape"], 3)
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return head.getvalue()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal up to one that was cut short."""
    lines = []
    try:
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            lines.append(json.loads(line))
    except (FileNotFoundError, ValueError):
        pass
    return lines


def crc32(path: Path) -> int:
    """The checksum of a file."""
    crc = 0
    with path.open("rb") as file:
        while part := file.read(2**24):
            crc = zlib.crc32(part, crc)
    return crc
