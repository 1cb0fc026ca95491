"""The memory of a process on a CPU, where every step frees what the next one needs again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

LIBC = ctypes.CDLL(None)
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt: what to give back at once, and how much to take apart
DEFAULTS = {TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}  # what glibc comes to by itself


def retain_freed_memory() -> None:
    """From now on what this process frees stays with it: to ask for it anew was more than half of a ResNet18's time."""
    _set({TRIM_THRESHOLD: -1, MMAP_MAX: 0})


@contextmanager
def retained_memory(device: torch.device) -> Iterator[None]:
    """Within, what this process frees stays with it, if it trains on a CPU; at the end it is given back."""
    if device.type != "cpu":
        yield
        return
    retain_freed_memory()
    try:
        yield
    finally:
        _set(DEFAULTS)
        with suppress(AttributeError):
            LIBC.malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    with suppress(AttributeError):  # other C libraries have no such options
        for option, value in options.items():
            LIBC.mallopt(option, value)
