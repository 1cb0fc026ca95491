"""Layers: the parts of a model that hold parameters, in order, which of them train, and which are of the usual kind."""

from __future__ import annotations

import re

from torch import nn


def layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Name and module of every part that itself holds parameters, in order of registration."""
    return [(name, part) for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))]


def set_trainable(module: nn.Module, spec: str) -> None:
    """Let every layer train (`all`) or only the last n (`last:n`); a norm counts as a layer."""
    if spec == "all":
        module.requires_grad_(True)
        return
    found = re.fullmatch(r"last:([1-9]\d*)", spec)
    if not found:
        raise ValueError(f"Training {spec!r} is not known; give 'all' or 'last:n', as in 'last:2'.")
    count, parts = int(found[1]), layers(module)
    if count > len(parts):
        raise ValueError(
            f"Training {spec!r} asks for more than the model's {len(parts)} layers; ask for fewer or 'all'."
        )
    module.requires_grad_(False)
    for _, part in parts[-count:]:
        for parameter in part.parameters(recurse=False):
            parameter.requires_grad_(True)


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution takes neighbouring pixels, and zeros around the image, fewer than its kernel reaches."""
    fits = not isinstance(layer.padding, str) and all(
        p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True)
    )
    return fits and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
