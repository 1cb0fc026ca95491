"""An unfinished store: its images so far, and a log of the chunks that are on the disk."""

import io
import json
import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.data.store.chunks import CHUNK_SIZE, Chunk
from manyeyes.io.files import write_text

VERSION = 1  # of the format
WAL = "journal.jsonl"  # the write-ahead log
IMAGE_FILES = {"raw": "images.npy", "jpeg": "images.jpegs"}


@dataclass
class StoreBuilder:
    """The folder `.NAME.preparing` next to the store; only chunks that its write-ahead log lists count."""

    folder: Path
    metadata: dict[str, Any]  # the first line of the log; a folder with another one is emptied
    chunks: list[dict[str, Any]] = field(default_factory=list)  # the other lines, one for each finished chunk

    @property
    def store(self) -> Path:
        """The folder that becomes the store."""
        return self.folder / "store"

    @property
    def images(self) -> Path:
        return self.store / IMAGE_FILES[self.metadata["encoding"]]

    @property
    def state(self) -> dict[str, Any]:
        """The end and the checksum of the images so far."""
        header = self._header()
        return self.chunks[-1] if self.chunks else {"end": len(header), "crc": zlib.crc32(header)}

    @property
    def num_images(self) -> int:
        return int(min(len(self.chunks) * CHUNK_SIZE, self.metadata["images"]))

    def resume(self) -> None:
        """Find the chunks that were finished before, and truncate the images after them."""
        lines: list[dict[str, Any]] = []
        with suppress(FileNotFoundError, ValueError), (self.folder / WAL).open() as wal:
            for line in wal:  # up to the first one that is not complete
                lines.append(json.loads(line))
        if not lines or lines[0] != self.metadata or not self.images.exists():
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir()
            self.images.write_bytes(self._header())
            lines = [self.metadata]
        self.chunks = [line for line in lines[1:] if line["end"] <= self.images.stat().st_size]
        os.truncate(self.images, self.state["end"])  # before writing, since this frees space on a full disk
        write_text(self.folder / WAL, "".join(json.dumps(line) + "\n" for line in [self.metadata, *self.chunks]))

    def add(self, chunk: Chunk) -> None:
        """Append a chunk; it counts when its bytes are on the disk."""
        end, crc = self.state["end"], self.state["crc"]
        with self.images.open("r+b") as file:
            file.seek(end)
            file.write(chunk.data)
            file.flush()
            os.fsync(file.fileno())
        line: dict[str, Any] = {"end": end + len(chunk.data), "crc": zlib.crc32(chunk.data, crc)}
        line |= {"unreadable": chunk.unreadable, "notes": chunk.notes}
        if self.metadata["encoding"] == "jpeg":
            line["sizes"] = chunk.sizes
        with (self.folder / WAL).open("a") as wal:
            wal.write(json.dumps(line) + "\n")
        self.chunks.append(line)

    def _header(self) -> bytes:
        """Return the first bytes of the images: those of an npy file, if they are raw."""
        shape = (self.metadata["images"], *self.metadata["shape"], 3)
        header = io.BytesIO()
        if self.metadata["encoding"] == "raw":
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return header.getvalue()


def crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**24):
            crc = zlib.crc32(block, crc)
    return crc
