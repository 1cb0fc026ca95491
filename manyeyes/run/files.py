"""Files that are whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file and put it in place of `path` in one step; on failure nothing changes."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda beside: void(beside.write_text(text, encoding="utf-8")))


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    try:
        write_whole(path, lambda beside: save_file(tensors, beside, about))
    except SafetensorError as error:  # how safetensors says that the disk is full
        raise OSError(errno.EIO, str(error), str(path)) from error


def void(_: object) -> None:
    """Take a value and return nothing, so that a writer that returns a count can be passed on."""


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
