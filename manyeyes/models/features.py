"""A model in two parts: the layers before its first trainable one, whose outputs are features, and the head after them."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyeyes.models.flat import FlatModel
from manyeyes.models.inspection import preserved_generators, trial_images

RTOL = 1e-5  # of the largest value, by which features and outputs may differ from the whole model's


@dataclass(frozen=True, eq=False)
class FeatureSplit:
    """A model that is split at the input of one of its layers."""

    model: FlatModel  # the whole one, which computes features
    layer: str
    feature_shape: tuple[int, ...]  # of one image
    head: FlatModel  # from features to outputs, with the same tensors as the whole model, by the same names

    @torch.no_grad()
    def features(self, inputs: Tensor) -> Tensor:
        """Return the features of preprocessed images; what follows the features is not computed."""
        module = self.model.module.eval()
        hook = module.get_submodule(self.layer).register_forward_pre_hook(_stop_with_input)
        try:
            with preserved_generators(inputs.device):
                module(self.model.to_memory_format(inputs))
        except _Reached as reached:
            return reached.features
        finally:
            hook.remove()
        raise AssertionError(f"{self.layer} was reached when the model was split and is no longer")


class _Reached(Exception):
    """The forward has reached the layer whose input the features are."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def _stop_with_input(layer: nn.Module, args: tuple[Any, ...]) -> None:
    raise _Reached(args[0])


@dataclass
class _Call:
    """A call of a layer while a model ran."""

    inputs: Tensor | None  # None where they are not one tensor, or the layer was called again
    outputs: Any = None


Calls = dict[str, _Call]  # by the name of the layer, in the order in which the calls began


def split_at_features(model: FlatModel, height: int, width: int, channels: int = 3) -> FeatureSplit | str:
    """Split a model before its first trainable layer; return why, where that cannot be done exactly.

    The layer is the last one before whose input nothing trains, is random, or differs between training and evaluation.
    A head is only returned if it gives the whole model's outputs for a few images.
    """
    if not any(not _changes(model, name) for name, layer in model.module.named_modules() if _has_parameters(layer)):
        return "a model of which all layers train"
    weights = model.read()
    moved = torch.cat([1.1 * weights[: model.num_trainable] + 0.1, weights[model.num_trainable :]])
    images = trial_images(height, width, weights.device, channels)
    with preserved_generators(images.device):
        trained, evaluated, later = (
            _record_calls(model, values, images, training)
            for values, training in ((weights, True), (weights, False), (moved, False))
        )
        for name, call in reversed(evaluated.items()):
            features = call.inputs
            if (
                features is None
                or not name
                or not _changes(model, name)
                or not _follows_weights(model, name, evaluated)
            ):
                continue
            if not all(_is_close(calls.get(name, _Call(None)).inputs, features) for calls in (trained, later)):
                continue
            head = _make_head(model, name, evaluated, tuple(images.shape[1:]))
            with suppress(Exception):  # whatever a forward raises that relies on the layers that are skipped
                if _gives_same_outputs(model, head, images, features):
                    return FeatureSplit(model, name, tuple(features.shape[1:]), head)
    return (
        "this model: what is before its trainable layers is random, differs between training and evaluation (a live "
        "BatchNorm, dropout), or does not reach them as one tensor"
    )


def _has_parameters(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters(recurse=False))


def _changes(model: FlatModel, layer: str) -> bool:
    """Return whether a tensor of a layer changes when the model trains."""
    return any(name.startswith(f"{layer}.") for name in model.shapes)


def _follows_weights(model: FlatModel, layer: str, calls: Calls) -> bool:
    """Return whether a layer that has weights was called before this one, and is not around it."""
    earlier = [*calls][: [*calls].index(layer)]
    modules = (model.module.get_submodule(name) for name in earlier if not _is_inside(layer, name))
    return any(_has_parameters(module) for module in modules)


@torch.no_grad()
def _record_calls(model: FlatModel, weights: Tensor, images: Tensor, training: bool) -> Calls:
    trial, calls = FlatModel(copy.deepcopy(model.module).train(training)), Calls()

    def before(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_one_tensor = len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and name not in calls
        is_batch = is_one_tensor and args[0].dtype == torch.float32 and args[0].shape[:1] == images.shape[:1]
        calls[name] = _Call(args[0].clone() if is_batch else None)

    def after(name: str, layer: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        calls[name].outputs = outputs

    for name, layer in trial.module.named_modules():
        layer.register_forward_pre_hook(partial(before, name), with_kwargs=True)
        layer.register_forward_hook(partial(after, name))
    trial(weights[: model.num_trainable], weights[model.num_trainable :].clone(), trial.to_memory_format(images))
    return calls


def _is_close(actual: Tensor | None, expected: Tensor) -> bool:
    if actual is None or actual.shape != expected.shape:
        return False
    return bool((actual - expected).abs().max() <= RTOL * expected.abs().max())


def _make_head(model: FlatModel, layer: str, calls: Calls, image_shape: tuple[int, ...]) -> FlatModel:
    """Return a copy of the model that takes the inputs of a layer.

    It runs the smallest part of the model that contains the layer and returns the model's outputs. What the part does not
    need is left out.
    """
    head = copy.deepcopy(model.module)
    around = [name for name in calls if _is_inside(layer, name)]
    part = [name for name in around if calls[name].outputs is calls[""].outputs][-1]
    inputs = calls[part].inputs
    if part == layer:
        for name in around:
            if name != layer:
                _keep_children_around(head.get_submodule(name), name, layer)
        _set_forward(head, _Part(head.get_submodule(layer)))
    else:
        for name in _skipped_layers(model, calls, part, layer):
            head.set_submodule(name, _Skipped(tuple(calls[name].outputs.shape[1:])))
        head_layer = _FixedInput(head.get_submodule(layer))
        _set_forward(head_layer.layer, head_layer)
        shape = image_shape if inputs is None else tuple(inputs.shape[1:])
        _set_forward(head, _Replay(head.get_submodule(part), head_layer, shape))
    features = calls[layer].inputs
    if features is not None and features.dim() != 4:
        head.channels_last = ()  # type: ignore[assignment]  # a setting, which is not a tensor
    flat_head = FlatModel(head)
    flat_head.structure = model.module
    return flat_head


def _keep_children_around(module: nn.Module, name: str, layer: str) -> None:
    prefix = f"{name}." if name else ""
    for child in [child for child, _ in module.named_children() if not _is_inside(layer, prefix + child)]:
        delattr(module, child)


def _skipped_layers(model: FlatModel, calls: Calls, part: str, layer: str) -> list[str]:
    """Return the layers of a part that were called before a layer of it; none that are in one of the others."""
    skipped: list[str] = []
    for name in [*calls][: [*calls].index(layer)]:
        is_earlier = name != part and _is_inside(name, part) and not _is_inside(layer, name)
        is_new = not any(_is_inside(name, other) for other in skipped)
        if is_earlier and is_new and _can_be_skipped(calls[name]) and not _changes(model, name):
            skipped.append(name)
    return skipped


def _is_inside(layer: str, other: str) -> bool:
    """Return whether a layer is another one or a part of it; the model itself has the name ""."""
    return not other or f"{layer}.".startswith(f"{other}.")


def _can_be_skipped(call: _Call) -> bool:
    return call.inputs is not None and isinstance(call.outputs, Tensor) and len(call.outputs) == len(call.inputs)


def _set_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = forward  # of this module alone, not of its class


class _Skipped(nn.Module):
    """Takes the place of a layer whose outputs are not used: zeros of their shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), *self.shape)


@dataclass(eq=False)
class _Part:
    """The forward of a head that is a single layer."""

    layer: nn.Module

    def __call__(self, features: Tensor) -> Any:
        return self.layer(features)


@dataclass(eq=False)
class _FixedInput:
    """The forward of the first layer of a head: whatever its inputs, it takes the features."""

    layer: nn.Module
    features: Tensor | None = None

    def __call__(self, _: Tensor) -> Any:
        return type(self.layer).forward(self.layer, self.features)


@dataclass(eq=False)
class _Replay:
    """The forward of a head of several layers: that of a part of the model, with other inputs for one of them."""

    part: nn.Module
    first: _FixedInput
    input_shape: tuple[int, ...]

    def __call__(self, features: Tensor) -> Any:
        self.first.features = features
        try:
            inputs = features.new_zeros(len(features), *self.input_shape)
            return type(self.part).forward(self.part, inputs)
        finally:
            self.first.features = None


@torch.no_grad()
def _gives_same_outputs(model: FlatModel, head: FlatModel, images: Tensor, features: Tensor) -> bool:
    """Return whether model and head agree on some of the images, in training and in evaluation."""
    if head.shapes != model.shapes:
        return False
    weights, seed = model.read(), torch.ones((), dtype=torch.int64, device=images.device)
    theta, statistics = weights[: model.num_trainable], weights[model.num_trainable :]
    for training in (True, False):
        results = []
        for trial, inputs in ((model, images), (head, features)):
            copied = FlatModel(copy.deepcopy(trial.module).train(training))
            moved = statistics.clone()
            outputs = copied(theta, moved, copied.to_memory_format(inputs[:2].clone()), seed)
            results.append(torch.cat([outputs.flatten(), moved]))
        if not _is_close(*results):
            return False
    return True
