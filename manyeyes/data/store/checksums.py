"""The checksums of a store's images: `checksums.npy` has the CRC-32 of each, which is checked when it is first read."""

import io
import mmap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHECKSUMS_FILE = "checksums.npy"  # uint32: the CRC-32 of the bytes of each image
FIX = "copy the store again, or prepare it again"


class ImageChecksums:
    """Checks each image when it is first read, by this process or one that was forked from it."""

    def __init__(self, path: Path, checksums: NDArray[np.uint32]) -> None:
        self._args = (path, checksums)
        self._checksums = checksums.tolist()
        self._is_checked = mmap.mmap(-1, max(1, len(checksums)))  # a byte for each image, shared by forked processes

    def __len__(self) -> int:
        return len(self._checksums)

    @property
    def content(self) -> bytes:
        """The checksums of all images, which tell their source from any other."""
        return self._args[1].tobytes()

    def check(self, row: int, data: bytes | memoryview) -> None:
        """Raise ValueError if these are not the bytes of an image that were written."""
        if not self._is_checked[row]:
            if zlib.crc32(data) != self._checksums[row]:
                raise ValueError(f"{self._args[0]} is damaged: image {row} has another checksum: {FIX}")
            self._is_checked[row] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageChecksums, self._args


def read_checked(path: Path, crc: int) -> bytes:
    """Return the content of a small file; raise ValueError if it has another checksum."""
    data = path.read_bytes()
    if zlib.crc32(data) != crc:
        raise ValueError(f"{path} is damaged: {FIX}")
    return data


def to_npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of an npy file of uint8."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return header.getvalue()
