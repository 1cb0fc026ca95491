"""Convolutions with fewer products beside PyTorch's: milliseconds of values and all gradients on one core, in float32.

    python benchmarks/convolutions.py [--record FILE]

`rounding` is how far the gradient of the weights is from that in float64, in parts of its length; where it is the same,
both are PyTorch's, which has fewer numbers to move.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.models.cpu import for_cpu
from manyeyes.run.folder import environment

TIMES = 15
CASES = [  # images, channels, side, rows of the kernel
    (50, 64, 16, 5),
    (4, 64, 16, 5),
    (1, 64, 16, 5),
    (50, 32, 16, 5),
    (16, 128, 28, 3),
    (16, 256, 14, 3),
    (16, 512, 7, 3),
    (16, 64, 56, 3),
    (2, 128, 112, 3),
    (1, 128, 224, 3),
]


def gradients(layer: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    outputs = layer(images)
    return torch.autograd.grad(outputs, (images, *layer.parameters()), torch.ones_like(outputs))


def milliseconds(layer: nn.Module, images: Tensor) -> float:
    """Of the fastest of several times."""
    found = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        gradients(layer, images)
        found.append(1e3 * (time.perf_counter() - begin))
    return round(min(found), 2)


def measured(images: int, channels: int, side: int, high: int) -> dict[str, object]:
    plain = nn.Sequential(nn.Conv2d(channels, channels, high, padding=high // 2))
    plain.channels_last = ("cpu",)  # type: ignore[assignment]
    fast = for_cpu(plain)
    x = torch.randn(images, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
    found: dict[str, object] = {"ours": milliseconds(fast, x), "PyTorch's": milliseconds(plain, x)}
    slopes = {"ours": gradients(fast, x)[1], "PyTorch's": gradients(plain, x)[1]}
    exact = gradients(plain.double(), x.detach().double().requires_grad_())[1]
    found["rounding"] = {name: float(f"{(one - exact).norm() / exact.norm():.1e}") for name, one in slopes.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    record: Path | None = parser.parse_args().record
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = {}
    for images, channels, side, high in CASES:
        name = f"{high} x {high}, {images} x {side} x {side} x {channels}"
        rows[name] = measured(images, channels, side, high)
        print(f"{name:28}", rows[name], flush=True)
    if record is not None:
        record.write_text(json.dumps(environment() | {"milliseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
