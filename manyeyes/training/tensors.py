"""Files of tensors, which are complete or absent."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from manyeyes.io.atomic import atomic_write


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file in one step, with the permissions of other new files."""

    def write(temporary: Path) -> None:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata)
        temporary.chmod(mode)  # safetensors creates files that only their owner can read

    try:
        atomic_write(path, write)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(errno.EIO, str(error), str(path)) from error
