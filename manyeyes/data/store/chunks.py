"""The bytes of a store's images from a source: in chunks, in order, by one process or several."""

import errno
import pickle
import signal
import zlib
from collections import deque
from collections.abc import Generator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints
from manyeyes.data.clean_spawn import process_pool, without_main
from manyeyes.data.decode import DecodedImage, UnreadableImage, decode, fit, image_shape
from manyeyes.data.manifest import Source
from manyeyes.data.store.images import encode

DISK_ERRORS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not of one image
CHUNKS_PER_PROCESS = 3  # that are converted ahead
CHUNK_SIZE = 128  # images that a kill loses at most, and that a process has in memory


@dataclass(frozen=True)
class Chunk:
    """Consecutive images of the store; an unreadable one is black (JPEG: empty)."""

    data: bytes
    sizes: list[int]  # bytes of each image
    checksums: list[int]  # of each image
    unreadable: list[tuple[int, str]]  # row and reason
    notes: list[tuple[int, str]]  # row and property of a readable image


@dataclass(frozen=True, eq=False)
class ConversionJob:
    """What is converted and how; it can be sent to another process."""

    source: Source
    images: Ints  # the index in the source of each row of the store
    size: int | None
    shape: tuple[int, int]  # height and width of every image
    encoding: str

    @property
    def num_chunks(self) -> int:
        return -(-len(self.images) // CHUNK_SIZE)

    def chunk(self, number: int) -> Chunk:
        images, unreadable, notes = [], [], []
        for row in range(number * CHUNK_SIZE, min((number + 1) * CHUNK_SIZE, len(self.images))):
            try:
                image, image_notes = self._convert(int(self.images[row]))
            except UnreadableImage as problem:
                image, image_notes = b"" if self.encoding == "jpeg" else bytes(3 * self.shape[0] * self.shape[1]), ()
                unreadable.append((row, str(problem)))
            images.append(image)
            notes += [(row, note) for note in image_notes]
        return Chunk(b"".join(images), list(map(len, images)), list(map(zlib.crc32, images)), unreadable, notes)

    def _convert(self, index: int) -> tuple[bytes, tuple[str, ...]]:
        """Return the bytes of one image as in the store, and its notes."""
        data, image = read_image(self.source, index, self.size)
        height, width = image.pixels_HWC.shape[:2]
        if (height, width) != self.shape:
            sizes = f"{height} x {width} pixels and others are {self.shape[0]} x {self.shape[1]}"
            raise ValueError(f"{self.source.name(index)} is {sizes}: set a size for all")
        if self.encoding == "raw":
            return image.pixels_HWC.tobytes(), image.notes
        is_plain = image.is_plain_jpeg and not image.notes
        if is_plain and simplejpeg.decode_jpeg_header(data, strict=False)[:2] == self.shape:
            return data, ()  # encoding it again would only lose quality
        return encode(image.pixels_HWC), image.notes


def read_image(source: Source, index: int, size: int | None) -> tuple[bytes, DecodedImage]:
    """Return the bytes of an image's file, empty without one, and its pixels."""
    data = _read(source, index)
    if isinstance(data, bytes):
        return data, decode(data, size, source.name(index))
    if data.dtype != np.uint8 or data.ndim != 3 or data.shape[2] != 3:
        raise ValueError(f"{source.name(index)} is {data.dtype} {data.shape}: give uint8 [height, width, 3]")
    return b"", DecodedImage(fit(data, size))


def read_shape(source: Source, index: int) -> tuple[int, int]:
    """Return the height and width of an image, of a file from its header."""
    data = _read(source, index)
    height, width = image_shape(data) if isinstance(data, bytes) else data.shape[:2]
    return int(height), int(width)


def _read(source: Source, index: int) -> bytes | NDArray[np.uint8]:
    try:
        return source.read(index)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise UnreadableImage("missing" if isinstance(error, FileNotFoundError) else "unreadable") from None


def convert(job: ConversionJob, first: int, num_processes: int) -> Generator[Chunk, None, None]:
    """Yield the chunks from `first` on, in order."""
    remaining = iter(range(first, job.num_chunks))
    if num_processes == 1:
        yield from map(job.chunk, remaining)
        return
    num_ahead = CHUNKS_PER_PROCESS * num_processes  # so that processes work while the parent writes
    ignore_ctrl_c = (signal.signal, (signal.SIGINT, signal.SIG_IGN))  # the parent handles it
    with NamedTemporaryFile(suffix=".pickle") as file:  # not an argument, which would block if a process died at once
        try:
            with without_main():
                pickle.dump(job, file)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            reason = f"Several processes cannot read images of a {type(job.source).__name__} ({error})"
            fix = "define the class in a module other than the script, or set processes=1"
            raise ValueError(f"{reason}: {fix}") from error
        file.flush()
        with process_pool(num_processes, *ignore_ctrl_c) as pool:
            try:
                pending = deque(pool.submit(_convert_chunk, file.name, n) for n in islice(remaining, num_ahead))
                while pending:
                    chunk = pending.popleft().result()
                    pending.extend(pool.submit(_convert_chunk, file.name, n) for n in islice(remaining, 1))
                    yield chunk
            except BrokenProcessPool:
                reason = "A process that converts images was killed, perhaps because memory ran out"
                raise ValueError(f"{reason}: run the same command again with fewer processes") from None
            finally:
                pool.shutdown(cancel_futures=True)


def _convert_chunk(path: str, number: int) -> Chunk:
    return _load_job(path).chunk(number)


@cache
def _load_job(path: str) -> ConversionJob:
    job: ConversionJob = pickle.loads(Path(path).read_bytes())
    return job
