"""Building a model by its name, its import path or its factory."""

import copy
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from torch import nn

from manyeyes.core import registry
from manyeyes.core.registry import Bounds, Option, Registration, check_value, import_object, import_path, options_of
from manyeyes.models.inspection import layers
from manyeyes.models.norms import NORM_BOUNDS, NORM_HELP
from manyeyes.models.pretrained import load_pretrained

CONTEXT = ("classes", "size", "seed")  # arguments that describe the run, passed to a model whose signature has them
PRETRAINED_HELP = "pretrained weights: a file, a URL or imagenet; none: from scratch"
COMMON = ("norm", "pretrained", "trainable")  # options that every model has
Factory = Callable[..., nn.Module]
Model = nn.Module | str | Mapping[str, Any] | Factory  # as given to `train`: a mapping has a name and options


def build_model(
    model: str | Factory,
    classes: int,
    *,
    size: int = 32,
    norm: Annotated[str | None, NORM_HELP] = None,
    pretrained: Annotated[str | os.PathLike[str] | None, PRETRAINED_HELP] = None,
    trainable: Annotated[str, "layers that train: all, or last:n"] = "all",
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Build a model on the CPU: `[B, 3, size, size]` images in, `[B, classes]` logits out.

    Parameters
    ----------
    model
        A registered name, `"package.module:factory"`, or the factory itself: a module class or a function that returns
        a module. It is called with those of `classes`, `size`, `seed` and `norm` that its signature has.
    norm
        The kind of norm layers; models without norm layers ignore it.
    seed
        What the initial weights depend on; the global random generators are neither used nor changed.
    options
        The model's own options, such as `width` of lenet.
    """
    for name, value in (("classes", classes), ("size", size)):
        check_value(name, value, int, Bounds(minimum=1))
    registration = _registration(model)
    accepted = {option.name for option in options_of(registration.factory)}
    context = {"classes": classes, "size": size, "seed": seed}
    arguments = options | {name: value for name, value in context.items() if name in accepted}
    is_registered = registration.name in registry.names("model")
    if norm is not None and is_registered:
        check_value("model.norm", norm, str, NORM_BOUNDS)
    if norm is not None and ("norm" in accepted or not is_registered):
        arguments["norm"] = norm
    # torch.manual_seed would also reseed the GPUs' generators; only the CPU's is used, and restored.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        module = registry.instantiate(registration, arguments)
    if not isinstance(module, nn.Module):
        raise ValueError(f"model={registration.name} made a {type(module).__name__}: return a torch.nn.Module")
    set_trainable(module, trainable)
    if pretrained is not None:
        load_pretrained(module, pretrained)
    return module


def make_module(model: Model, classes: int, size: int, seed: int) -> nn.Module:
    """Return a module that a run may change: from a name, a description, an import path or a factory, or a copy."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if isinstance(model, Mapping):
        options = dict(model)
        return build_model(options.pop("name", None), classes, size=size, seed=seed, **options)
    if isinstance(model, str) and ":" not in model:
        return build_model(model, classes, size=size, seed=seed)
    factory = import_object(model, "model") if isinstance(model, str) else _registration(model).factory
    parameters = inspect.signature(factory).parameters
    arguments = {"classes": classes, "size": size, "seed": seed}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        module = factory(**{name: value for name, value in arguments.items() if name in parameters})
    if not isinstance(module, nn.Module):
        raise ValueError(f"model={model} returned a {type(module).__name__}: return a torch.nn.Module.")
    return module


def model_options(model: str | Factory) -> tuple[Option, ...]:
    """Return the options of `model.*`: the model's own, then those that every model has."""
    own = {option.name: option for option in options_of(_registration(model).factory) if option.name not in CONTEXT}
    common = {option.name: option for option in options_of(build_model) if option.name in COMMON}
    return tuple((own | {name: common[name] for name in common if name not in own}).values())


def _registration(model: str | Factory) -> Registration:
    if isinstance(model, str):
        return registry.lookup("model", model)
    if not callable(model):
        fix = "give a name, package.module:function, a torch.nn.Module or a function that returns one"
        raise ValueError(f"model is {registry.format_value(model)}: {fix}")
    return Registration("model", import_path(model), model)


def set_trainable(module: nn.Module, trainable: str) -> None:
    """Let every layer train (`all`) or only the last n (`last:n`); a norm counts as a layer."""
    if trainable == "all":
        module.requires_grad_(True)
        return
    if not (match := re.fullmatch(r"last:([1-9]\d*)", trainable)):
        raise ValueError(f"model.trainable is {trainable!r}: give 'all' or 'last:n', as in 'last:2'")
    num_layers, all_layers = int(match[1]), layers(module)
    if num_layers > len(all_layers):
        raise ValueError(f"model.trainable is {trainable!r} and the model has {len(all_layers)} layers: give fewer")
    module.requires_grad_(False)
    for parameter in (p for _, layer in all_layers[-num_layers:] for p in layer.parameters(recurse=False)):
        parameter.requires_grad_(True)
