"""The layers of a model: the modules that hold parameters, in order, and which of them train."""

from __future__ import annotations

import re

from torch import nn


def layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the name and module of every submodule with parameters of its own, in order of registration."""
    return [
        (name, layer) for name, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False))
    ]


def set_trainable(module: nn.Module, trainable: str) -> None:
    """Let every layer train (`all`) or only the last n (`last:n`); a norm counts as a layer."""
    if trainable == "all":
        module.requires_grad_(True)
        return
    match = re.fullmatch(r"last:([1-9]\d*)", trainable)
    if not match:
        raise ValueError(f"model.trainable is {trainable!r}: give 'all' or 'last:n', as in 'last:2'")
    num_layers, all_layers = int(match[1]), layers(module)
    if num_layers > len(all_layers):
        raise ValueError(f"model.trainable is {trainable!r} and the model has {len(all_layers)} layers: give fewer")
    module.requires_grad_(False)
    for _, layer in all_layers[-num_layers:]:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(True)


def is_plain(layer: nn.Conv2d) -> bool:
    """Return whether a convolution has no dilation, and zero padding that is smaller than its kernel."""
    is_padding_small = not isinstance(layer.padding, str) and all(
        padding < kernel for padding, kernel in zip(layer.padding, layer.kernel_size, strict=True)
    )
    return is_padding_small and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
