"""The memory allocator of a process on a CPU, where every step needs the memory that the last one freed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from manyeyes.io.portable import c_library

LIBC = c_library()
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt: what is returned at once, and how much is mapped
DEFAULTS = {TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}  # the values that glibc arrives at by itself


def retain_freed_memory() -> None:
    """Let this process retain the memory it frees: requesting it again took more than half of a ResNet18's time."""
    _set_options({TRIM_THRESHOLD: -1, MMAP_MAX: 0})


@contextmanager
def retained_memory(device: torch.device) -> Iterator[None]:
    """Retain freed memory within the block if the process trains on a CPU; it is returned at the end."""
    if device.type != "cpu":
        yield
        return
    retain_freed_memory()
    try:
        yield
    finally:
        _set_options(DEFAULTS)
        with suppress(AttributeError):
            LIBC.malloc_trim(0)


def _set_options(options: dict[int, int]) -> None:
    with suppress(AttributeError):  # other C libraries have no such options
        for option, value in options.items():
            LIBC.mallopt(option, value)
