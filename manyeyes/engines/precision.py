"""The precision in which an engine computes; weights, updates and their sums are float32 in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("auto", "float32", "tf32", "bf16")


def choose_precision(name: str, device: torch.device) -> str:
    """Return the precision by name; `auto` is tf32 on a GPU and float32 elsewhere."""
    if name not in PRECISIONS:
        raise ValueError(f"engine.precision is {name!r}: choose {', '.join(PRECISIONS)}.")
    if name == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    if name == "tf32" and device.type != "cuda":
        raise ValueError(f"engine.precision=tf32 needs a GPU and the device is {device.type}: choose float32 or bf16.")
    return name


def compute_dtype(precision: str) -> torch.dtype:
    """Return the type that the model computes in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Use kernels of a precision that give the same bits every time."""
    allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=precision == "tf32"
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32
