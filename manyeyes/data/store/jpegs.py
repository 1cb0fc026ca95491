"""Images of a store as JPEG, a fifth of the size on disk: decoded when they are asked for, by one thread a core."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.data.store.memory_map import row_numbers

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
