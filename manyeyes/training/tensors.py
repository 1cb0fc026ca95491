"""Tensors in files that are whole or not there."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from manyeyes.io.atomic import atomic_write


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    def write(beside: Path) -> None:
        beside.touch()
        rights = beside.stat().st_mode
        save_file(tensors, beside, about)
        beside.chmod(rights)  # safetensors lets nobody else read its files

    try:
        atomic_write(path, write)
    except SafetensorError as error:  # how safetensors says that the disk is full
        raise OSError(errno.EIO, str(error), str(path)) from error
