"""The bytes of a store's images from a source: in chunks, in order, by one process or several."""

import pickle
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import simplejpeg

from manyeyes.core.population import Ints
from manyeyes.data.clean_spawn import CleanSpawnContext, without_main
from manyeyes.data.decode import DecodedImage, UnreadableImage, decode, fit
from manyeyes.data.manifest import Source
from manyeyes.data.store.images import encode

CHUNK_SIZE = 128  # images that a kill loses at most, and that a process has in memory


@dataclass(frozen=True)
class Chunk:
    """Consecutive images of the store; an unreadable one is black (JPEG: empty)."""

    data: bytes
    sizes: list[int]  # bytes of each image
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
        return Chunk(b"".join(images), list(map(len, images)), unreadable, notes)

    def _convert(self, index: int) -> tuple[bytes, tuple[str, ...]]:
        """Return the bytes of one image as in the store, and its notes."""
        data, image = read_image(self.source, index, self.size)
        height, width = image.pixels_HWC.shape[:2]
        if (height, width) != self.shape:
            raise ValueError(
                f"{self.source.name(index)} is {height} x {width} pixels and others are {self.shape[0]} x "
                f"{self.shape[1]}: set a size for all"
            )
        if self.encoding == "raw":
            return image.pixels_HWC.tobytes(), image.notes
        is_plain = image.is_plain_jpeg and not image.notes
        if is_plain and simplejpeg.decode_jpeg_header(data, strict=False)[:2] == self.shape:
            return data, ()  # encoding it again would only lose quality
        return encode(image.pixels_HWC), image.notes


def read_image(source: Source, index: int, size: int | None) -> tuple[bytes, DecodedImage]:
    """Return the bytes of an image's file, empty without one, and its pixels."""
    try:
        data = source.read(index)
    except OSError as error:
        raise UnreadableImage("missing" if isinstance(error, FileNotFoundError) else "unreadable") from None
    if isinstance(data, bytes):
        return data, decode(data, size, source.name(index))
    if data.dtype != np.uint8 or data.ndim != 3 or data.shape[2] != 3:
        raise ValueError(f"{source.name(index)} is {data.dtype} {data.shape}: give uint8 [height, width, 3]")
    return b"", DecodedImage(fit(data, size))


def convert(job: ConversionJob, first: int, num_processes: int) -> Generator[Chunk, None, None]:
    """Yield the chunks from `first` on; processes take turns and wait until their last chunk was received."""
    if num_processes == 1:
        yield from map(job.chunk, range(first, job.num_chunks))
        return
    context, message = CleanSpawnContext(), _serialize(job)
    workers, pipes = [], []
    try:
        for _ in range(num_processes):
            pipe, worker_pipe = context.Pipe()
            workers.append(context.Process(target=_worker_main, args=(worker_pipe,), daemon=True))
            pipes.append(pipe)
            workers[-1].start()
            worker_pipe.close()  # so that the pipe ends when the process ends
        for rank, pipe in enumerate(pipes):  # not as an argument, which would block forever if the process died
            _call(pipe.send, range(first + rank, job.num_chunks, num_processes))
            _call(pipe.send_bytes, message)
        for number in range(job.num_chunks - first):
            pipe = pipes[number % num_processes]
            chunk = _call(pipe.recv)
            if isinstance(chunk, BaseException):
                raise chunk
            yield replace(chunk, data=_call(pipe.recv_bytes))
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()


def _serialize(job: ConversionJob) -> bytes:
    try:
        with without_main():
            return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Several processes cannot read images of a {type(job.source).__name__} ({error}): define the class at "
            "the top level of a module other than the script, or set processes=1"
        ) from error


def _worker_main(pipe: Connection) -> None:
    """Convert the chunks that the parent asks for; end when the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    with suppress(EOFError, ConnectionError):
        numbers: range = pipe.recv()
        job: ConversionJob = pickle.loads(pipe.recv_bytes())
        for number in numbers:
            try:
                chunk = job.chunk(number)
            except Exception as error:
                pipe.send(error)
                return
            pipe.send(replace(chunk, data=b""))
            pipe.send_bytes(chunk.data)  # pickling it would double the time


def _call(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method of a pipe; the worker may end before or during a message."""
    try:
        return method(*args)
    except (EOFError, OSError):
        raise ValueError(
            "A process that converts images was killed, perhaps because memory ran out: run the same command again "
            "with fewer processes"
        ) from None
