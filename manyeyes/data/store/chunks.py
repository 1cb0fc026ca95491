"""From a source to the bytes of a store's images: in chunks, in order, by one process or by several."""

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
from manyeyes.data.decode import Decoded, UnreadableImage, decode, fit
from manyeyes.data.manifest import Source
from manyeyes.data.store.images import encode

CHUNK = 128  # images; what a kill loses at most, and what a process holds in memory


@dataclass(frozen=True)
class Chunk:
    """Images that follow one another in the store; an unreadable one is black, or of no length."""

    data: bytes
    lengths: list[int]  # bytes of each image
    left_out: list[tuple[int, str]]  # row and reason
    notes: list[tuple[int, str]]  # row and what was noticed of an image that is kept


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be done; it can be sent to another process."""

    source: Source
    images: Ints  # which image of the source each row of the store is
    size: int | None
    shape: tuple[int, int]  # height and width of every image
    encoding: str

    @property
    def count(self) -> int:
        return -(-len(self.images) // CHUNK)

    def chunk(self, number: int) -> Chunk:
        pieces, left_out, notes = [], [], []
        for row in range(number * CHUNK, min((number + 1) * CHUNK, len(self.images))):
            try:
                piece, noticed = self._piece(int(self.images[row]))
            except UnreadableImage as problem:
                piece, noticed = b"" if self.encoding == "jpeg" else bytes(3 * self.shape[0] * self.shape[1]), ()
                left_out.append((row, str(problem)))
            pieces.append(piece)
            notes += [(row, note) for note in noticed]
        return Chunk(b"".join(pieces), [len(piece) for piece in pieces], left_out, notes)

    def _piece(self, index: int) -> tuple[bytes, tuple[str, ...]]:
        """The bytes of one image, as they lie in the store."""
        data, image = read(self.source, index, self.size)
        height, width = image.pixels_HWC.shape[:2]
        if (height, width) != self.shape:
            raise ValueError(
                f"{self.source.name(index)} is {height} x {width} pixels and others are {self.shape[0]} x "
                f"{self.shape[1]}: give a size, to which all are brought"
            )
        if self.encoding == "raw":
            return image.pixels_HWC.tobytes(), image.notes
        if image.quick and not image.notes:
            found = simplejpeg.decode_jpeg_header(data, strict=False)
            if found[:2] == self.shape:
                return data, ()  # it is what is wanted: encoding it again would only cost quality
        return encode(image.pixels_HWC), image.notes


def read(source: Source, index: int, size: int | None) -> tuple[bytes, Decoded]:
    """One image of a source: its file's bytes, if it has one, and its pixels."""
    try:
        data = source.read(index)
    except FileNotFoundError:
        raise UnreadableImage("missing") from None
    except OSError:
        raise UnreadableImage("unreadable") from None
    if isinstance(data, np.ndarray):
        assert data.dtype == np.uint8 and data.ndim == 3 and data.shape[2] == 3
        return b"", Decoded(fit(data, size))
    return data, decode(data, size, source.name(index))


def chunks(job: Job, first: int, processes: int) -> Generator[Chunk, None, None]:
    """The chunks from `first` on. Process p makes every so-manieth of them, and waits until its last one was taken."""
    if processes == 1:
        yield from map(job.chunk, range(first, job.count))
        return
    context, packed = CleanSpawnContext(), _packed(job)
    workers, pipes = [], []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            workers.append(context.Process(target=_serve, args=(theirs,), daemon=True))
            pipes.append(ours)
            workers[-1].start()
            theirs.close()  # so that the end of the process is the end of the pipe
        for number, pipe in enumerate(pipes):  # not with its start, which would wait for ever for one that died
            _alive(pipe.send, range(first + number, job.count, processes))
            _alive(pipe.send_bytes, packed)
        for number in range(job.count - first):
            pipe = pipes[number % processes]
            made = _alive(pipe.recv)
            if isinstance(made, BaseException):
                raise made
            yield replace(made, data=_alive(pipe.recv_bytes))
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()


def _packed(job: Job) -> bytes:
    try:
        with without_main():
            return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"images of a {type(job.source).__name__} cannot be prepared by several processes ({error}): define its "
            "class at the top of a module that is not the script, or give processes=1"
        ) from error


def _serve(pipe: Connection) -> None:
    """What a process does: it ends when its parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    with suppress(EOFError, ConnectionError):
        numbers: range = pipe.recv()
        job: Job = pickle.loads(pipe.recv_bytes())
        for number in numbers:
            try:
                made = job.chunk(number)
            except Exception as error:
                pipe.send(error)
                return
            pipe.send(replace(made, data=b""))
            pipe.send_bytes(made.data)  # without pickling, which would take as long again


def _alive(call: Callable[..., Any], *given: Any) -> Any:
    """What a pipe's method returns; the worker's end may come before a message or in the middle of one."""
    try:
        return call(*given)
    except (EOFError, OSError):
        raise ValueError(
            "a process that prepares images was ended, perhaps because memory ran out: give the same command again, "
            "with fewer processes"
        ) from None
