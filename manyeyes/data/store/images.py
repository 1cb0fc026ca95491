"""The images of a store: raw pixels, read at the speed of the disk, or JPEGs, decoded when they are needed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints

THREADS = 8  # they wait for the disk rather than work
STRETCH = 2**24  # bytes that one thread asks for at a time
FEW = 2**22  # bytes that are read before threads would have started


class MemoryMappedImages:
    """The pixels of an npy file; an index reads those rows and no others.

    A memory map, indexed by an array, waits for every page in turn: a third of this speed on a cold disk.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        assert np.lib.format.read_magic(self._file) == (1, 0)
        self.shape, _, _ = np.lib.format.read_array_header_1_0(self._file)
        self._start = self._file.tell()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        rows = row_numbers(rows, len(self))
        out = np.empty((*rows.shape, *self.shape[1:]), np.uint8)
        size = int(np.prod(self.shape[1:]))
        flat, images = rows.ravel(), out.reshape(rows.size, size)
        jobs = [(images, places, int(flat[places[0]])) for places in _stretches(flat, max(1, STRETCH // size))]
        if out.nbytes < FEW or len(jobs) == 1:
            for job in jobs:
                self._read(*job)
            return out
        with ThreadPoolExecutor(min(THREADS, len(jobs))) as pool:
            for _ in pool.map(self._read, *zip(*jobs, strict=True)):
                pass
        return out

    def _read(self, images: NDArray[np.uint8], places: Ints, first: int) -> None:
        """Fill some places with rows that follow one another in the file."""
        buffers = [memoryview(images[place]) for place in places.tolist()]
        position = self._start + first * images.shape[1]
        while buffers:
            count = os.preadv(self._file.fileno(), buffers, position)
            if not count:
                raise OSError(f"{self._path} has become shorter than it was")
            position += count
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.pop(0))
            if count:
                buffers[0] = buffers[0][count:]

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryMappedImages, (self._path,)


def row_numbers(rows: Any, count: int) -> Ints:
    """Rows that are there, from a slice or from any array of numbers."""
    numbers = np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
        raise IndexError(f"there are {count} images, and rows from {numbers.min()} to {numbers.max()} were asked for")
    return numbers


def _stretches(rows: Ints, most: int) -> list[Ints]:
    """The places of rows that follow one another, in order of the file; no more at a time than a call can take."""
    places = np.argsort(rows, kind="stable")
    cuts = np.flatnonzero(np.diff(rows[places]) != 1) + 1
    most = min(most, 512)
    whole = np.split(places, cuts) if len(places) else []
    return [run[begin : begin + most] for run in whole for begin in range(0, len(run), most)]


QUALITY = 95  # of images that must be encoded anew: the eye sees no difference


def encode(pixels_HWC: NDArray[np.uint8]) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HWC), QUALITY, colorsubsampling="444")


class JpegImages:
    """JPEGs one after another in a file, image i from byte `offsets[i]` to `offsets[i + 1]`; an empty one is black."""

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, offsets: Path, height: int, width: int, threads: int | None = None) -> None:
        self._again = (path, offsets, height, width, threads)
        self._offsets = np.load(offsets)
        self._file = path.open("rb", buffering=0)
        self._threads = threads or os.cpu_count() or 1
        self.shape = (len(self._offsets) - 1, height, width, 3)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        rows = row_numbers(rows, len(self))
        out = np.zeros((*rows.shape, *self.shape[1:]), np.uint8)
        wanted, images = rows.ravel().tolist(), out.reshape(-1, *self.shape[1:])
        # A pool of its own for each call: threads that stay would not survive a fork, and starting them takes no time.
        with ThreadPoolExecutor(min(self._threads, max(1, len(wanted)))) as pool:
            for _ in pool.map(self._decode, wanted, images):
                pass
        return out

    def _decode(self, row: int, into_HWC: NDArray[np.uint8]) -> None:
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        if end > begin:
            simplejpeg.decode_jpeg(os.pread(self._file.fileno(), end - begin, begin), "RGB", buffer=into_HWC)

    def __reduce__(self) -> tuple[Any, ...]:
        return JpegImages, self._again
