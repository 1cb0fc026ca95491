"""Verify a store: all that it contains against its checksums, and add those that an older store lacks."""

import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.data.store.builder import IMAGE_FILES, VERSION, crc32
from manyeyes.data.store.checksums import CHECKSUMS_FILE, FIX, read_checked, to_npy
from manyeyes.data.store.meta import META_FILE, meta_text, read_meta
from manyeyes.data.store.reader import open_images
from manyeyes.io.files import write_bytes, write_text

MAX_NAMED = 5  # damaged images in a message


def verify(path: Path) -> None:
    """Read all files of a store, and raise ValueError if one is damaged."""
    if problems := find_damage(path):
        raise ValueError(problems[0])


def find_damage(path: Path) -> list[str]:
    """Return a sentence for each damaged file of a store."""
    try:
        meta = read_meta(path)
    except ValueError as error:
        return [str(error)]
    return [problem for name in meta["crc32"] if (problem := _file_damage(path, name, meta))]


def add_checksums(path: Path) -> bool:
    """Add the checksums of the images to a store without them, if it is not damaged; return whether it had none."""
    meta = read_meta(path)
    if CHECKSUMS_FILE in meta["crc32"]:
        return False
    verify(path)
    count = len(open_images(path, meta))
    data = to_npy(np.array(list(map(zlib.crc32, _stored_images(path, meta, count))), "<u4"))
    write_bytes(path / CHECKSUMS_FILE, data)
    sizes, crcs = meta["bytes"] | {CHECKSUMS_FILE: len(data)}, meta["crc32"] | {CHECKSUMS_FILE: zlib.crc32(data)}
    write_text(path / META_FILE, meta_text(meta | {"version": VERSION, "bytes": sizes, "crc32": crcs}))
    return True


def _file_damage(path: Path, name: str, meta: Mapping[str, Any]) -> str:
    """Return what is wrong with a file; empty if nothing is."""
    file, size = path / name, meta["bytes"][name]
    if not file.exists():
        return f"{file} does not exist: {FIX}"
    if (actual := file.stat().st_size) != size:
        return f"{file} has {actual:,} bytes instead of {size:,}: {FIX}"
    if crc32(file) == meta["crc32"][name]:
        return ""
    images = _damaged_images(path, meta) if name == IMAGE_FILES[meta["encoding"]] else []
    more = ", ..." if len(images) > MAX_NAMED else ""
    named = f" ({len(images)} images: {', '.join(map(str, images[:MAX_NAMED]))}{more})" if images else ""
    return f"{file} is damaged{named}: {FIX}"


def _damaged_images(path: Path, meta: Mapping[str, Any]) -> list[int]:
    """Return the rows of the images with another checksum; none if that cannot be said."""
    try:
        data = read_checked(path / CHECKSUMS_FILE, meta["crc32"][CHECKSUMS_FILE])
        checksums = np.load(io.BytesIO(data)).tolist()
        images = _stored_images(path, meta, len(checksums))
        return [row for row, (image, crc) in enumerate(zip(images, checksums, strict=True)) if zlib.crc32(image) != crc]
    except (OSError, KeyError, ValueError):
        return []


def _stored_images(path: Path, meta: Mapping[str, Any], count: int) -> Iterator[bytes]:
    """Yield the stored bytes of each image."""
    file = path / IMAGE_FILES[meta["encoding"]]
    if meta["encoding"] == "jpeg":
        sizes = np.diff(np.load(path / "offsets.npy")).tolist()
    else:
        sizes = [int(np.prod(meta["shape"])) * 3] * count
    with file.open("rb") as opened:
        opened.seek(meta["bytes"][file.name] - sum(sizes))  # after the header of an npy file
        yield from map(opened.read, sizes)
