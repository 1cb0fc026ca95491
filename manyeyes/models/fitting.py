"""Whether a module fits the images and the classes, found out by trying a copy of it on two images."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from manyeyes.models.traits import trial_images


def check_fits(module: nn.Module, height: int, width: int, classes: int, evaluated: bool = True) -> None:
    """Raise ValueError unless the module makes `[N, classes]` logits of `[N, 3, height, width]` images.

    It is tried as it trains and, where it is `evaluated`, as it is evaluated. The module and the global random
    generators stay as they are.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(
                f"the model's {name} has no shape yet, because its layer is lazy: call the module once on a batch "
                f"of images [N, 3, {height}, {width}] before you pass it to train"
            )
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    images = trial_images(height, width, device)[:2]
    for training in (True, False) if evaluated else (True,):
        mode = "training" if training else "evaluation"
        _check_outputs(_outputs(copy.deepcopy(module).train(training), images, mode), mode, len(images), classes)


@torch.no_grad()
def _outputs(module: nn.Module, images: Tensor, mode: str) -> object:
    """What the module returns for the images; an error of its own becomes one sentence about them."""
    wrong = _convolutions_of_other_channels(module, images)
    try:
        with _generators_kept(images.device):
            outputs: object = module(images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the forward of a user's module raises
        if wrong:
            name, channels = wrong[0]
            raise ValueError(
                f"the model expects {channels} input channel{'s' * (channels != 1)} and the images have "
                f"{images.shape[1]}: give its layer {name} in_channels={images.shape[1]}"
            ) from error
        cause = ": ".join([type(error).__name__, *str(error).splitlines()[:1]]).rstrip(".:")
        raise ValueError(
            f"the model fails in {mode} mode on {str(images.dtype).removeprefix('torch.')} images "
            f"{list(images.shape)} ({cause}): give a model for images of this shape and type, "
            "or change the images' size with Augment(crop=...)"
        ) from error
    return outputs


def _convolutions_of_other_channels(module: nn.Module, images: Tensor) -> list[tuple[str, int]]:
    """A list that fills, while the module runs, with layers that are given the images and expect other channels."""
    found: list[tuple[str, int]] = []

    def watch(name: str, layer: nn.Conv2d) -> None:
        def look(_: nn.Module, inputs: tuple[object, ...]) -> None:
            given = inputs[0] if inputs else None
            if isinstance(given, Tensor) and given.shape == images.shape and layer.in_channels != images.shape[1]:
                found.append((name, layer.in_channels))

        layer.register_forward_pre_hook(look)

    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            watch(name or type(layer).__name__, layer)
    return found


def _check_outputs(outputs: object, mode: str, count: int, classes: int) -> None:
    wanted = f"return one floating-point Tensor of logits [N, {classes}]"
    if not isinstance(outputs, Tensor):
        inside = f" of {len(outputs)}" if isinstance(outputs, tuple | list | dict) else ""
        raise ValueError(f"the model returns a {type(outputs).__name__}{inside} in {mode} mode: {wanted}")
    if not outputs.is_floating_point():
        kind = str(outputs.dtype).removeprefix("torch.")
        raise ValueError(f"the model returns {kind} numbers in {mode} mode: {wanted}")
    if outputs.dim() == 2 and len(outputs) == count and outputs.shape[1] != classes:
        raise ValueError(
            f"the model has {outputs.shape[1]} output{'s' * (outputs.shape[1] != 1)} and the data has {classes} "
            f"class{'es' * (classes != 1)}: give its last layer {classes} output{'s' * (classes != 1)}"
        )
    if outputs.shape != (count, classes):
        raise ValueError(f"the model returns shape {list(outputs.shape)} for {count} images in {mode} mode: {wanted}")


@contextmanager
def _generators_kept(device: torch.device) -> Iterator[None]:
    """Every global generator is afterwards as it was, and kernels are chosen as `habits` chooses them."""
    python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - kept, not used
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)  # noqa: NPY002
