"""Our layers for CPUs compared with PyTorch's: milliseconds of outputs and all gradients on one core, in float32.

    python benchmarks/cpu_layers.py [--record FILE]

`rounding` is the distance of the weights' gradient from that in float64, relative to its norm; if it is the same for
both, PyTorch's layer was kept.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.training.description import environment

NUM_REPEATS = 15
CONVOLUTIONS = [  # images, channels, image size, kernel size
    (50, 64, 16, 5),
    (4, 64, 16, 5),
    (1, 64, 16, 5),
    (50, 32, 16, 5),
    (16, 128, 28, 3),
    (16, 256, 14, 3),
    (16, 512, 7, 3),
    (16, 64, 56, 3),
    (4, 128, 56, 3),
    (4, 128, 64, 3),
]
LINEAR = [  # rows, inputs, outputs
    (50, 4096, 384),
    (10, 1600, 512),
    (2, 4096, 384),
    (1, 4096, 384),
    (64, 1280, 1203),
    (16, 512, 1628),
    (50, 384, 192),
]


def gradients(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    outputs = layer(inputs)
    return torch.autograd.grad(outputs, (inputs, *layer.parameters()), torch.ones_like(outputs))


def milliseconds(layer: nn.Module, inputs: Tensor) -> float:
    """Return the time of the fastest of several calls."""
    times = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        gradients(layer, inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return round(min(times), 3)


def compare(layer: nn.Module, inputs: Tensor) -> dict[str, object]:
    plain = nn.Sequential(layer)
    plain.channels_last = ("cpu",)  # type: ignore[assignment]
    fast, inputs = optimize_for_cpu(plain), inputs.requires_grad_()
    row: dict[str, object] = {"ours": milliseconds(fast, inputs), "PyTorch's": milliseconds(plain, inputs)}
    weight_gradients = {"ours": gradients(fast, inputs)[1], "PyTorch's": gradients(plain, inputs)[1]}
    exact = gradients(plain.double(), inputs.detach().double().requires_grad_())[1]
    row["rounding"] = {
        name: float(f"{(gradient - exact).norm() / exact.norm():.1e}") for name, gradient in weight_gradients.items()
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path)
    record: Path | None = parser.parse_args().record
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}

    def add_row(name: str, layer: nn.Module, inputs: Tensor) -> None:
        rows[name] = compare(layer, inputs)
        print(f"{name:28}", rows[name], flush=True)

    for images, channels, size, kernel in CONVOLUTIONS:
        pixels = torch.randn(images, channels, size, size).contiguous(memory_format=torch.channels_last)
        layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
        add_row(f"{kernel} x {kernel}, {images} x {size} x {size} x {channels}", layer, pixels)
    for batch, inputs, outputs in LINEAR:
        add_row(f"linear, {batch} x {inputs} to {outputs}", nn.Linear(inputs, outputs), torch.randn(batch, inputs))
    if record is not None:
        record.write_text(json.dumps(environment() | {"milliseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
