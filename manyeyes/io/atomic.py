"""Atomic writes: a file is complete or not there; it is written to a temporary file, flushed and renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file and rename it to `path`; if it fails, `path` keeps its old content."""
    temp_path = path.with_name(f".{path.name}.writing")
    try:
        write(temp_path)
        with temp_path.open("rb") as file:
            os.fsync(file.fileno())
        temp_path.replace(path)
    except BaseException:
        temp_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    atomic_write(path, lambda temp_path: temp_path.write_bytes(data))


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder, so that a file renamed into it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
