"""Layers with our own kernels compared with PyTorch's: microseconds of outputs and all gradients on a GPU.

    python benchmarks/kernels.py [--record FILE]

Both are compiled and captured as in training, in bf16 and channels-last. `memory` is the time to copy as many bytes as
the layer must read and write at least.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.engines.base import deterministic_kernels
from manyeyes.engines.gpu.compiling import compiled, compiling
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.training.description import environment

NUM_REPEATS = 20


def norm(channels: int, groups: int, relu: nn.Module) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(groups, channels), relu)


def depthwise(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], int]] = {
    # layer; images, channels and image size; how often it reads or writes a tensor as large as its images, at least
    "GroupNorm and ReLU6, 64 x 112 x 112 x 96": (lambda: norm(96, 8, nn.ReLU6()), (64, 96, 112), 8),
    "GroupNorm and ReLU6, 64 x 56 x 56 x 144": (lambda: norm(144, 8, nn.ReLU6()), (64, 144, 56), 8),
    "GroupNorm and ReLU6, 64 x 14 x 14 x 576": (lambda: norm(576, 8, nn.ReLU6()), (64, 576, 14), 8),
    "GroupNorm and ReLU, 16 x 56 x 56 x 64": (lambda: norm(64, 32, nn.ReLU()), (16, 64, 56), 8),
    "depthwise convolution, 64 x 56 x 56 x 144": (lambda: depthwise(144, 1), (64, 144, 56), 6),
    "depthwise convolution, stride 2, 64 x 112 x 112 x 96": (lambda: depthwise(96, 2), (64, 96, 112), 4),
}


def compare(layer: nn.Module, shape: tuple[int, int, int], num_passes: int) -> dict[str, float]:
    images, channels, size = shape
    x = torch.randn(images, channels, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    plain = layer.to("cuda", torch.bfloat16)
    plain.channels_last = ("cuda",)  # type: ignore[assignment]
    source = torch.empty(num_passes * x.numel() // 2, device="cuda", dtype=torch.bfloat16)
    return {
        "ours": microseconds(gradient_call(optimize_for_cuda(plain, vmapped=False), x)),
        "PyTorch's": microseconds(gradient_call(plain, x)),
        "memory": microseconds(lambda: source.clone()),
    }


def gradient_call(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    forward = compiled(layer)
    output_gradient = torch.randn_like(layer(x))
    return lambda: torch.autograd.grad(forward(x), (x, *layer.parameters()), output_gradient)


def microseconds(call: Callable[[], object]) -> float:
    """Return the time of the fastest of several replays of a CUDA graph."""
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(NUM_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return round(min(times), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    record: Path | None = parser.parse_args().record
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU, and PyTorch finds none.")
    rows = {}
    with deterministic_kernels("bf16"), compiling():
        for name, (make_layer, shape, num_passes) in CASES.items():
            rows[name] = compare(make_layer(), shape, num_passes)
            print(f"{name:54}", *(f"{kind} {time:7.1f}" for kind, time in rows[name].items()), flush=True)
    if record is not None:
        record.write_text(json.dumps(environment() | {"microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
