"""Checks whether a module fits the data, and probes its traits, by running a copy of it on a few images."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from manyeyes.models.flat import FlatModel

OUTPUT_RTOL = 1e-3  # of the largest output: kernels for another batch size round differently


def layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the name and module of every submodule with parameters of its own, in order of registration."""
    return [(name, layer) for name, layer in module.named_modules() if list(layer.parameters(recurse=False))]


def check_fits(
    module: nn.Module, height: int, width: int, classes: int, evaluated: bool = True, channels: int = 3
) -> None:
    """Raise ValueError unless the module returns `[N, classes]` logits for `[N, channels, height, width]` images.

    It is tried in training mode and, if `evaluated`, in evaluation mode. Module and random generators do not change.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if is_lazy(tensor):
            fix = f"call the module once on a batch of images [N, {channels}, {height}, {width}] before you pass it to train"
            raise ValueError(f"the model's {name} has no shape yet, because its layer is lazy: {fix}")
    device = tensors[0][1].device if tensors else torch.device("cpu")
    images = trial_images(height, width, device, channels)[:2]
    for training in (True, False) if evaluated else (True,):
        mode = "training" if training else "evaluation"
        _check_outputs(_outputs(copy.deepcopy(module).train(training), images, mode), mode, len(images), classes)


@torch.no_grad()
def _outputs(module: nn.Module, images: Tensor, mode: str) -> object:
    """Return what the module returns for the images; an error becomes one sentence about the images."""
    mismatched = _record_mismatched_convolutions(module, images)
    try:
        with preserved_generators(images.device):
            return module(images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the forward of a user's module raises
        if mismatched:
            name, channels = mismatched[0]
            problem = f"the model expects {_count(channels, 'input channel')} and the images have {images.shape[1]}"
            raise ValueError(f"{problem}: give its layer {name} in_channels={images.shape[1]}") from error
        cause = ": ".join([type(error).__name__, *str(error).splitlines()[:1]]).rstrip(".:")
        kind = f"{str(images.dtype).removeprefix('torch.')} images {list(images.shape)}"
        height, width = images.shape[-2:]
        fix = "give a model for images of this shape and type, or change the images' size with preprocess.crop"
        if height != width:
            squares = f"prepare the images as squares (manyeyes data prepare ... --size {min(height, width)})"
            fix = f"{squares}, or give a model that takes images which are not square"
        raise ValueError(f"the model fails in {mode} mode on {kind} ({cause}): {fix}") from error


def _record_mismatched_convolutions(module: nn.Module, images: Tensor) -> list[tuple[str, int]]:
    """Return a list that fills while the module runs: layers that get the images and expect other channels."""
    mismatched: list[tuple[str, int]] = []

    def check_input(name: str, layer: nn.Conv2d, inputs: tuple[object, ...]) -> None:
        first = inputs[0] if inputs else None
        if isinstance(first, Tensor) and first.shape == images.shape and layer.in_channels != images.shape[1]:
            mismatched.append((name or type(layer).__name__, layer.in_channels))

    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(partial(check_input, name))
    return mismatched


def _check_outputs(outputs: object, mode: str, num_images: int, classes: int) -> None:
    """Raise ValueError unless the outputs are logits of the classes."""
    advice = f"return one floating-point Tensor of logits [N, {classes}]"
    if not isinstance(outputs, Tensor):
        size = f" of {len(outputs)}" if isinstance(outputs, tuple | list | dict) else ""
        raise ValueError(f"the model returns a {type(outputs).__name__}{size} in {mode} mode: {advice}")
    if not outputs.is_floating_point():
        raise ValueError(
            f"the model returns {str(outputs.dtype).removeprefix('torch.')} numbers in {mode} mode: {advice}"
        )
    if outputs.dim() == 2 and len(outputs) == num_images and outputs.shape[1] != classes:
        model, data = _count(outputs.shape[1], "output"), _count(classes, "class", "es")
        fix = f"give its last layer {_count(classes, 'output')}"
        raise ValueError(f"the model has {model} and the data has {data}: {fix}")
    if outputs.shape != (num_images, classes):
        shape = list(outputs.shape)
        raise ValueError(f"the model returns shape {shape} for {num_images} images in {mode} mode: {advice}")


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Use deterministic kernels, and restore every global generator afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - restored, not used
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@dataclass(frozen=True)
class ModuleTraits:
    uses_rng: bool  # whether it uses a global random generator
    mixes_batch: bool  # whether an example's output, or a norm's statistics, depend on the rest of the batch
    trains_on_one: bool  # whether it can train on a batch of one image
    mutated_buffer: str  # a buffer that changes and is not a norm's; "": none


def trial_images(height: int, width: int, device: torch.device, channels: int = 3) -> Tensor:
    """Return three images to try a model on, always the same; no global generator is used."""
    images = torch.rand(3, channels, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    return images * torch.arange(1, 4, device=device)[:, None, None, None] - 1


@torch.no_grad()
def probe(model: FlatModel, height: int, width: int, channels: int = 3) -> ModuleTraits:
    """Return the traits of a module for images of this size; the module itself does not change."""
    trial, weights = FlatModel(copy.deepcopy(model.module).train()), model.read()
    images = trial.to_memory_format(trial_images(height, width, weights.device, channels))

    def outputs_and_statistics(num_images: int) -> tuple[Tensor, Tensor]:
        """Return the outputs for the first images, and the statistics of the norms afterwards."""
        statistics = weights[model.num_trainable :].clone()
        return trial(weights[: model.num_trainable], statistics, images[:num_images]), statistics

    with preserved_generators(weights.device):
        cuda = torch.cuda.default_generators
        generator = cuda[weights.device.index or 0] if weights.is_cuda else torch.default_generator
        before = generator.get_state()
        (two, statistics_two), (three, statistics_three) = outputs_and_statistics(2), outputs_and_statistics(3)
        uses_rng = not torch.equal(before, generator.get_state())
        try:
            outputs_and_statistics(1)
            trains_on_one = True
        except ValueError:  # live BatchNorm needs several values of every channel
            trains_on_one = False
    buffers = zip(model.module.named_buffers(), trial.module.buffers(), strict=True)
    mutated = (name for (name, old), new in buffers if old.is_floating_point() and not torch.equal(old, new))
    has_same_outputs = bool((two - three[:2]).abs().max() <= OUTPUT_RTOL * two.abs().max())
    has_same_statistics = torch.allclose(statistics_two, statistics_three, rtol=OUTPUT_RTOL, atol=OUTPUT_RTOL**2)
    return ModuleTraits(uses_rng, not (has_same_outputs and has_same_statistics), trains_on_one, next(mutated, ""))
