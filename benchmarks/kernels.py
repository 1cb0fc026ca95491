"""Layers with kernels of our own beside PyTorch's: microseconds of a layer's values and all its gradients, on a GPU.

    python benchmarks/kernels.py [--record FILE]

Both are compiled and captured as in a step, in bf16 and with channels side by side. `memory` is how long it takes to
copy as many bytes as the layer must at least read and write.
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
from manyeyes.training.environment import environment

TIMES = 20


def norm(channels: int, groups: int, relu: nn.Module) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(groups, channels), relu)


def depthwise(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], int]] = {
    # layer; images, channels and side; how often at least it reads or writes something as large as its images
    "GroupNorm and ReLU6, 64 x 112 x 112 x 96": (lambda: norm(96, 8, nn.ReLU6()), (64, 96, 112), 8),
    "GroupNorm and ReLU6, 64 x 56 x 56 x 144": (lambda: norm(144, 8, nn.ReLU6()), (64, 144, 56), 8),
    "GroupNorm and ReLU6, 64 x 14 x 14 x 576": (lambda: norm(576, 8, nn.ReLU6()), (64, 576, 14), 8),
    "GroupNorm and ReLU, 16 x 56 x 56 x 64": (lambda: norm(64, 32, nn.ReLU()), (16, 64, 56), 8),
    "depthwise convolution, 64 x 56 x 56 x 144": (lambda: depthwise(144, 1), (64, 144, 56), 6),
    "depthwise convolution, stride 2, 64 x 112 x 112 x 96": (lambda: depthwise(96, 2), (64, 96, 112), 4),
}


def measured(layer: nn.Module, shape: tuple[int, int, int], passes: int) -> dict[str, float]:
    images, channels, side = shape
    x = torch.randn(images, channels, side, side, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    plain = layer.to("cuda", torch.bfloat16)
    plain.channels_last = ("cuda",)  # type: ignore[assignment]
    half = torch.empty(passes * x.numel() // 2, device="cuda", dtype=torch.bfloat16)
    return {
        "ours": microseconds(step(optimize_for_cuda(plain, vmapped=False), x)),
        "PyTorch's": microseconds(step(plain, x)),
        "memory": microseconds(lambda: half.clone()),
    }


def step(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    forward = compiled(layer)
    slope = torch.randn_like(layer(x))
    return lambda: torch.autograd.grad(forward(x), (x, *layer.parameters()), slope)


def microseconds(call: Callable[[], object]) -> float:
    """Of the fastest of several replays."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    found = []
    for _ in range(TIMES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return round(min(found), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    record: Path | None = parser.parse_args().record
    if not torch.cuda.is_available():
        raise SystemExit("kernels are for GPUs, and there is none here")
    rows = {}
    with deterministic_kernels("bf16"), compiling():
        for name, (layer, shape, passes) in CASES.items():
            rows[name] = measured(layer(), shape, passes)
            print(f"{name:54}", *(f"{what} {time:7.1f}" for what, time in rows[name].items()), flush=True)
    if record is not None:
        record.write_text(json.dumps(environment() | {"microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
