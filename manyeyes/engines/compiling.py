"""Compiled functions, kept on disk between runs and trusted only after their gradients have been checked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RTOL_FACTOR = (
    3.0  # a compiled gradient may be so many times as far from float32's as the uncompiled one of its precision
)
RTOL_FLOOR = 1e-3  # or this share of the parameter's gradient, or of the mean over all parameters


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for fixed shapes, compiled when it is first called, and its gradient when that is first computed.

    Settings are given here and not set around the call: a gradient on a GPU is compiled in a thread of its own, which
    does not see what this one has set.
    """
    from torch._inductor import config

    steady: dict[str, Any] = {
        "reorder_for_peak_memory": False,  # which has lost gradients on the CPU
        "comprehensive_padding": False,  # of rows in memory, which a library's kernels then want copied without
    }
    if hasattr(config, "deterministic"):
        steady["deterministic"] = True  # the same kernels every time: none is chosen by timing
    return torch.compile(function, dynamic=False, fullgraph=True, options=steady)


@contextmanager
def compiling(what: str = "") -> Iterator[None]:
    """Where first calls compile: kept in the user's cache, with a line if somebody looks."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder()))
    from torch._dynamo import config as dynamo

    began = time.perf_counter()
    looked_at = what and sys.stderr.isatty()
    if looked_at:
        print(f"compiling {what}, once for this machine ...", end=" ", file=sys.stderr, flush=True)
    with dynamo.patch(recompile_limit=64):
        yield
    if looked_at:
        print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyeyes" / "compiled"


def first_bad_gradient(
    names: dict[str, int], compiled_KP: Tensor, plain_KP: Tensor, exact_KP: Tensor
) -> tuple[str, float] | None:
    """The parameter whose compiled gradient is worst, and by how much, if one is not to be trusted.

    Its distance from the float32 gradient is compared with that of the same precision without compiling.
    """
    sizes = list(names.values())
    found, plain, exact = (
        torch.stack([torch.linalg.vector_norm(piece.double()) for piece in pieces.split(sizes, dim=-1)])
        for pieces in (compiled_KP - exact_KP, plain_KP - exact_KP, exact_KP)
    )
    counts = torch.tensor(sizes, device=exact.device).double()
    typical = (exact.square().sum() / counts.sum()).sqrt() * counts.sqrt()
    excess = found / (RTOL_FACTOR * plain + RTOL_FLOOR * torch.maximum(exact, typical)).clamp_min(1e-30)
    worst = int(torch.nan_to_num(excess, nan=torch.inf).argmax())
    return (list(names)[worst], float(excess[worst])) if not float(excess[worst]) <= 1 else None
