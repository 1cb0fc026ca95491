"""In which numbers an engine computes; weights, updates and their sums are float32 in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("auto", "float32", "tf32", "bf16")


def choose_precision(name: str, device: torch.device) -> str:
    """`auto`: float32, on a GPU with the products of TF32."""
    if name not in PRECISIONS:
        raise ValueError(f"precision is {name!r}: choose {', '.join(PRECISIONS)}")
    if name == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    if name == "tf32" and device.type != "cuda":
        raise ValueError(f"precision tf32 is one of GPUs, and this is {device.type}: choose float32 or bf16")
    return name


def number_type(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Kernels of that precision that give the same bits every time."""
    products = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=precision == "tf32"
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = products
