"""Compiled functions, cached on disk between runs and trusted only after their gradients have been checked."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyeyes.io.steps import announce

T = TypeVar("T")
RTOL_FACTOR = 3.0  # how much further than the uncompiled gradient a compiled one may be from that in float32
RTOL_FLOOR = 1e-3  # of the norm of the parameter's gradient, or of the mean over all parameters
RECOMPILE_LIMIT = 64  # shapes of one function
MIN_TOLERANCE = 1e-30  # so that a parameter without a gradient divides by more than 0


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for fixed shapes, compiled when it is first called, its gradient when that is first computed.

    Options are passed to `torch.compile`, not patched around the call: on a GPU a gradient is compiled in a thread of
    its own, which does not see a patch.
    """
    from torch._inductor import config

    options: dict[str, Any] = {
        "reorder_for_peak_memory": False,  # it has lost gradients on the CPU
        "comprehensive_padding": False,  # of rows in memory, which a library's kernels copy to remove
    }
    if hasattr(config, "deterministic"):
        options["deterministic"] = True  # the same kernels every time: none is chosen by timing
    return torch.compile(function, dynamic=False, fullgraph=True, options=options)


@contextmanager
def compiling(subject: str = "") -> Iterator[None]:
    """Compile within the block with the user's cache, and announce the subject."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder()))
    from torch._dynamo import config as dynamo

    if subject:
        announce(f"compiling {subject}", "10 s to 3 min, the longer the first time on this machine")
    with dynamo.patch(recompile_limit=RECOMPILE_LIMIT):
        yield


def capture_graph(
    function: Callable[[], T], stream: torch.cuda.Stream, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Call a function, which compiles it, and return a second call as a CUDA graph, with what that call returned."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with collector_paused(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        result = function()
    return graph, result


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: a graph that it ends, such as one of an earlier run, would spoil one in capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def capture_forward(
    forward: Callable[[Tensor, Tensor], Tensor], weights: Tensor, images: Tensor, compile: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the forward pass of a model as a CUDA graph; batches of fewer images are padded with old ones."""
    weights, images = weights.clone(), images.clone()
    function = compiled(forward) if compile else forward
    with compiling("evaluation" if compile else ""):
        graph, outputs = capture_graph(lambda: function(weights, images), torch.cuda.Stream(weights.device))

    def replay(new_weights: Tensor, new_images: Tensor) -> Tensor:
        weights.copy_(new_weights)
        images[: len(new_images)].copy_(new_images)
        graph.replay()
        return outputs[: len(new_images)].clone()

    return replay


def cache_folder() -> Path:
    """Return the folder of compiled code."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyeyes" / "compiled"


def first_bad_gradient(
    sizes: dict[str, int], compiled_KP: Tensor, plain_KP: Tensor, exact_KP: Tensor
) -> tuple[str, float] | None:
    """Return the parameter whose compiled gradient is worst, and its error over the tolerance; None if all are good.

    `sizes` are the parameters' numbers of elements, by name. The distance from the float32 gradient is compared with
    that of the same precision without compiling.
    """
    num_elements = list(sizes.values())
    compiled_error, plain_error, exact_norm = (
        torch.stack([torch.linalg.vector_norm(piece.double()) for piece in grads.split(num_elements, dim=-1)])
        for grads in (compiled_KP - exact_KP, plain_KP - exact_KP, exact_KP)
    )
    counts = torch.tensor(num_elements, device=exact_norm.device).double()
    typical_norm = (exact_norm.square().sum() / counts.sum()).sqrt() * counts.sqrt()
    tolerance = RTOL_FACTOR * plain_error + RTOL_FLOOR * torch.maximum(exact_norm, typical_norm)
    excess = compiled_error / tolerance.clamp_min(MIN_TOLERANCE)
    worst = int(torch.nan_to_num(excess, nan=torch.inf).argmax())
    return (list(sizes)[worst], float(excess[worst])) if not float(excess[worst]) <= 1 else None
