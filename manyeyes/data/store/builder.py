"""An unfinished store: its images so far, and a log of the chunks that are on the disk."""

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyeyes.data.store.checksums import npy_header
from manyeyes.data.store.chunks import CHUNK_SIZE, Chunk
from manyeyes.io.files import errors_that_name, write_bytes, write_text

VERSION = 2  # of the format
UNCHECKED_VERSION = 1  # without checksums of single images, which is still read
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
        with suppress(FileNotFoundError, ValueError, TypeError, RecursionError), (self.folder / WAL).open() as wal:
            for line in wal:  # up to the first one that is not complete
                lines.append(_parse_line(line))
        if not lines or lines[0] != self.metadata or not self.images.exists():
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir()
            write_bytes(self.images, self._header())  # flushed, as the log refers to it
            lines = [self.metadata]
        self.chunks = list(_valid_chunks(lines[1:], self.state["end"], self.images.stat().st_size))
        os.truncate(self.images, self.state["end"])  # before writing, since this frees space on a full disk
        write_text(self.folder / WAL, "".join(map(_format_line, [self.metadata, *self.chunks])))

    def add(self, chunk: Chunk) -> None:
        """Append a chunk; it counts when its bytes are on the disk."""
        end, crc = self.state["end"], self.state["crc"]
        with errors_that_name(self.images), self.images.open("r+b") as file:
            file.seek(end)
            file.write(chunk.data)
            file.flush()
            os.fsync(file.fileno())
        line: dict[str, Any] = {"end": end + len(chunk.data), "crc": zlib.crc32(chunk.data, crc)}
        line |= {"checksums": chunk.checksums, "unreadable": chunk.unreadable, "notes": chunk.notes}
        if self.metadata["encoding"] == "jpeg":
            line["sizes"] = chunk.sizes
        with errors_that_name(self.folder / WAL), (self.folder / WAL).open("a") as wal:
            wal.write(_format_line(line))
        self.chunks.append(line)

    def _header(self) -> bytes:
        """Return the first bytes of the images: those of an npy file, if they are raw."""
        shape = (self.metadata["images"], *self.metadata["shape"], 3)
        return npy_header(shape) if self.metadata["encoding"] == "raw" else b""


def _valid_chunks(lines: list[dict[str, Any]], end: int, size: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks that are in the file one after the other, up to the first that is not."""
    for line in lines:
        if not end < line.get("end", 0) <= size:
            return
        end = line["end"]
        yield line


def _format_line(line: dict[str, Any]) -> str:
    """Return a line of the log, with its checksum."""
    return json.dumps([line, zlib.crc32(json.dumps(line).encode())]) + "\n"


def _parse_line(text: str) -> dict[str, Any]:
    """Return a line of the log; raise ValueError if it is not complete or damaged."""
    line, crc = json.loads(text)
    if not isinstance(line, dict) or crc != zlib.crc32(json.dumps(line).encode()):
        raise ValueError("the line is damaged")
    return line


def crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(2**24):
            crc = zlib.crc32(block, crc)
    return crc
