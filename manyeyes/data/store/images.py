"""The images of a store: raw pixels, read at the speed of the disk, or JPEGs, decoded when they are needed."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints
from manyeyes.data.store.checksums import FIX, ImageChecksums
from manyeyes.io.parsing import named_if_damaged
from manyeyes.io.portable import pread, preadv

READ_THREADS = 8  # they mostly wait for the disk
MAX_READ_BYTES = 2**24  # that one thread reads at a time
MIN_BYTES_FOR_THREADS = 2**22  # fewer are read before threads would have started
MAX_BUFFERS = 512  # of one call of preadv
JPEG_QUALITY = 95  # no visible difference


class MemoryMappedImages:
    """The pixels of an npy file; indexing reads only those rows.

    Indexing a memory map with an array waits for one page after another: a third of this speed on a cold disk.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, checksums: ImageChecksums | None = None) -> None:
        self._path, self._file, self._checksums = path, path.open("rb", buffering=0), checksums
        array: Any = np.load(path, mmap_mode="r")
        if array.dtype != np.uint8 or array.ndim != 4 or 0 in array.shape[1:] or not array.flags.c_contiguous:
            raise ValueError(f"{path} has {array.dtype} of shape {array.shape}, and no images: {FIX}")
        self.shape, self._start = array.shape, array.offset

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def checksums(self) -> ImageChecksums | None:
        return self._checksums

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        rows = row_indices(rows, len(self))
        images = np.empty((*rows.shape, *self.shape[1:]), np.uint8)
        num_bytes = int(np.prod(self.shape[1:]))
        runs = _consecutive_runs(rows.ravel(), min(MAX_BUFFERS, max(1, MAX_READ_BYTES // num_bytes)))
        read_run = partial(self._read_run, images.reshape(rows.size, num_bytes), rows.ravel())
        with ThreadPoolExecutor(READ_THREADS) as pool:  # starts no thread before it is used
            list(map(read_run, runs) if images.nbytes < MIN_BYTES_FOR_THREADS else pool.map(read_run, runs))
        return images

    def _read_run(self, images: NDArray[np.uint8], rows: Ints, indices: Ints) -> None:
        """Fill the images at some indices, whose rows are consecutive in the file."""
        buffers = [memoryview(images[index]) for index in indices.tolist()]
        offset = self._start + int(rows[indices[0]]) * images.shape[1]
        while buffers:
            count = preadv(self._file.fileno(), buffers, offset)
            if not count:
                raise OSError(f"{self._path} has become shorter since it was opened: copy it again")
            offset += count
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.pop(0))
            if count:
                buffers[0] = buffers[0][count:]
        if self._checksums is not None:
            for index in indices.tolist():
                self._checksums.check(int(rows[index]), images[index].data)

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryMappedImages, (self._path, self._checksums)


class JpegImages:
    """JPEGs in one file, image i between the bytes `offsets[i]` and `offsets[i + 1]` of `offsets.npy`; empty is black."""

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, height: int, width: int, checksums: ImageChecksums | None = None) -> None:
        self._args, self._checksums = (path, height, width, checksums), checksums
        self._offsets, self._file = np.load(path.with_name("offsets.npy")), path.open("rb", buffering=0)
        size = os.fstat(self._file.fileno()).st_size
        if not is_ascending(self._offsets) or self._offsets[0] < 0 or self._offsets[-1] > size:
            raise ValueError(f"{path.with_name('offsets.npy')} is damaged: {FIX}")
        self.shape = (len(self._offsets) - 1, height, width, 3)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def checksums(self) -> ImageChecksums | None:
        return self._checksums

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        rows = row_indices(rows, len(self))
        images = np.zeros((*rows.shape, *self.shape[1:]), np.uint8)
        # One pool per call: threads that stay would not survive a fork, and starting them takes no time.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._decode, rows.ravel().tolist(), images.reshape(-1, *self.shape[1:])))
        return images

    def _decode(self, row: int, image_HWC: NDArray[np.uint8]) -> None:
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        data = pread(self._file.fileno(), end - begin, begin)
        if self._checksums is not None:
            self._checksums.check(row, data)
        if data:
            with named_if_damaged(self._args[0], FIX):
                simplejpeg.decode_jpeg(data, "RGB", buffer=image_HWC)

    def __reduce__(self) -> tuple[Any, ...]:
        return JpegImages, self._args


def row_indices(rows: Any, count: int) -> Ints:
    """Return a slice or an array of rows as an array; raise IndexError for a row that does not exist."""
    indices = np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
    if indices.size and not (indices.min() >= 0 and indices.max() < count):
        raise IndexError(f"rows are {indices.min()} to {indices.max()}: give rows from 0 to {count - 1}")
    return indices


def is_ascending(offsets: NDArray[Any]) -> bool:
    """Return whether an array has offsets of images: whole numbers, of which none is smaller than the one before."""
    is_vector = offsets.ndim == 1 and len(offsets) > 0 and offsets.dtype.kind in "iu"
    return is_vector and bool((offsets[1:] >= offsets[:-1]).all())


def encode(pixels_HWC: NDArray[np.uint8]) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HWC), JPEG_QUALITY, colorsubsampling="444"))


def _consecutive_runs(rows: Ints, max_length: int) -> list[Ints]:
    """Return the indices of rows that are consecutive in the file, in the order of the file, in runs of limited length."""
    order = np.argsort(rows, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(rows[order]) != 1) + 1)
    return [run[begin : begin + max_length] for run in runs for begin in range(0, len(run), max_length)]
