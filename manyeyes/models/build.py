"""Building a model by its name, its import path or its factory."""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import nn

from manyeyes.core import registry
from manyeyes.core.registry import (
    Bounds,
    Option,
    Registration,
    check_value,
    import_object,
    import_path,
    is_import_path,
    options_of,
)
from manyeyes.core.structure import head_blocks
from manyeyes.models.adapters import Adapter, add_adapters
from manyeyes.models.inspection import layers
from manyeyes.models.libraries import library_weights_input
from manyeyes.models.norms import NORM_HELP, check_norm, convert_norms, has_batch_norm, use_running_statistics_for_one
from manyeyes.models.pretrained import INPUTS, OWN_WEIGHTS, PretrainedSource, WeightsInput, load_pretrained

# Arguments that describe the run, passed to a model whose signature has them.
CONTEXT = ("classes", "num_classes", "size", "seed")
PRETRAINED_HELP = "pretrained weights: true (those published for the model), a file or a URL; none: from scratch"
TRAINABLE_HELP = "layers that train: all, last:n (layers) or head:n (blocks, as in personal_layers=head)"
SINGLE_IMAGE_HELP = "a batch of one image under live BatchNorm: refuse, or running (use the running statistics)"
SINGLE_IMAGE_BOUNDS = Bounds(choices=("refuse", "running"))
NO_ADAPTER = Adapter()
COMMON = ("norm", "pretrained", "trainable", "single_image", "adapter")  # options that every model has
Factory = Callable[..., nn.Module]
Model = nn.Module | str | Mapping[str, Any] | Factory  # as given to `train`: a mapping has a name and options


def build_model(
    model: str | Factory | nn.Module,
    classes: int,
    *,
    size: int = 32,
    norm: Annotated[str | None, NORM_HELP] = None,
    pretrained: Annotated[PretrainedSource, PRETRAINED_HELP] = None,
    trainable: Annotated[str, TRAINABLE_HELP] = "all",
    single_image: Annotated[str, SINGLE_IMAGE_HELP] = "refuse",
    adapter: Annotated[Adapter | Mapping[str, Any], "what is added to the model and trained in its place"] = NO_ADAPTER,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """Build a model on the CPU: `[B, 3, size, size]` images in, `[B, classes]` logits out.

    Parameters
    ----------
    model
        A registered name, `"timm:NAME"`, `"torchvision:NAME"`, `"transformers:NAME_OR_FOLDER"`,
        `"package.module:factory"`, the factory itself (a module class or a function that returns a module), or a module,
        of which a copy is changed. A factory is called with those of `classes` (or `num_classes`), `size`, `seed` and
        `norm` that its signature has; without the first, the last layer is replaced by one with an output for each class.
    norm
        The kind of norm layers: `group`, or BatchNorm that is `frozen` or `live`. Models without norm layers ignore it.
    pretrained
        True, a file or a URL; see `load_pretrained`.
    trainable
        The layers that train: `all` that the model leaves trainable, `last:n` layers or `head:n` blocks.
    adapter
        `Adapter("lora", rank=8)` lets low-rank adapters and the classifier train, and nothing else.
    seed
        What the initial weights depend on; the global random generators are neither used nor changed.
    options
        The model's own options, such as `width` of lenet.
    """
    for name, value in (("classes", classes), ("size", size)):
        check_value(name, value, int, Bounds(minimum=1))
    check_value("model.single_image", single_image, str, SINGLE_IMAGE_BOUNDS)
    adapter = _checked_adapter(adapter, norm, trainable)
    # torch.manual_seed would also reseed the GPUs' generators; only the CPU's is used, and restored.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        context = {"classes": classes, "num_classes": classes, "size": size, "seed": seed, "pretrained": pretrained}
        is_changed = False
        module, accepted = _make_from(model, context | ({} if norm is None else {"norm": norm}), options)
        if not accepted & {"classes", "num_classes"}:
            replace_classifier(module, classes)
        if pretrained and "pretrained" not in accepted:
            is_changed = any(key.endswith("running_mean") for key in load_pretrained(module, pretrained).ignored)
        conversion = "" if "norm" in accepted else _convert_norms(module, norm, adapter)
        if trainable != "all":
            set_trainable(module, trainable)
        if adapter.name != "none":
            add_adapters(module, adapter)
    if is_changed:
        fix = "set model.norm=frozen to start from what they have learned"
        print(f"model.norm=group: the pretrained weights are those of a model with BatchNorm; {fix}.", file=sys.stderr)
    if conversion:
        print(conversion, file=sys.stderr)
    if single_image == "running":
        use_running_statistics_for_one(module)
    if pretrained and isinstance(model, str):
        module.weights_input = weights_input({"name": model, "pretrained": pretrained})  # type: ignore[assignment]
    return module


def _checked_adapter(adapter: Adapter | Mapping[str, Any], norm: str | None, trainable: str) -> Adapter:
    """Return an adapter, also of plain options; refuse settings that would let more than it train or travel."""
    if not isinstance(adapter, Adapter):
        options: dict[str, Any] = {
            k: tuple(value) if isinstance(value, list) else value for k, value in adapter.items()
        }
        adapter = Adapter(**options)
    if norm is not None:
        check_norm(norm)
    if adapter.name != "none" and (trainable != "all" or norm == "live"):
        setting = f"model.trainable={trainable}" if trainable != "all" else f"model.norm={norm}"
        fix = "leave it out, because only the adapters and the classifier train"
        raise ValueError(f"model.adapter={adapter.name} does not go with {setting}: {fix}")
    return adapter


def _make_from(
    model: str | Factory | nn.Module, context: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[nn.Module, set[str]]:
    """Return a copy of a module, or what a factory makes; and what of the context its factory has used."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model), set()
    registration = _registration(model)
    accepted = {option.name for option in options_of(registration.factory)}
    if registration.name in registry.names("model"):  # which have no BatchNorm but by their own option
        check_norm(context.get("norm", "group"))
    known = {key: value for key, value in context.items() if key in accepted}
    module = registry.instantiate(registration, {**options, **known})
    if not isinstance(module, nn.Module):
        raise ValueError(f"model={registration.name} made a {type(module).__name__}: return a torch.nn.Module")
    return module, accepted


def _convert_norms(module: nn.Module, norm: str | None, adapter: Adapter) -> str:
    """Convert the norms of a module as it was asked for; return what was done."""
    if norm is None and adapter.name != "none" and has_batch_norm(module):
        norm = "frozen"  # what travels is the adapters and the classifier, without statistics
    return "" if norm is None or not has_batch_norm(module) else f"model.norm={norm}: {convert_norms(module, norm)}."


def replace_classifier(module: nn.Module, classes: int) -> None:
    """Give a module an output for each class: its last layer is replaced, unless it has as many outputs already."""
    name = layers(module)[-1][0] if layers(module) else ""
    last = module.get_submodule(name)
    new: nn.Module | None = None
    if type(last) is nn.Linear and last.out_features != classes:
        new = nn.Linear(last.in_features, classes, last.bias is not None)
    if type(last) is nn.Conv2d and last.kernel_size == (1, 1) and last.out_channels != classes:
        new = nn.Conv2d(last.in_channels, classes, 1, bias=last.bias is not None)
    if new is not None and name:
        module.set_submodule(name, new)


def make_module(model: Model, classes: int, size: int, seed: int) -> nn.Module:
    """Return a module that a run may change: from a name, a description, an import path or a factory, or a copy."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if isinstance(model, Mapping):
        options = dict(model)
        return build_model(options.pop("name", None), classes, size=size, seed=seed, **options)
    if isinstance(model, str) and not is_import_path(model):
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


def weights_input(model: Model) -> WeightsInput | None:
    """Return the images that a model's pretrained weights were trained on; None from scratch, or where it is unknown."""
    if isinstance(model, nn.Module):
        expected = getattr(model, "weights_input", None)
        return expected if isinstance(expected, WeightsInput) else None
    if not isinstance(model, Mapping) or not (pretrained := model.get("pretrained")):
        return None
    name = str(model["name"])
    if name.partition(":")[0] in registry.libraries("model"):
        return library_weights_input(name)
    return INPUTS.get(name) if pretrained in OWN_WEIGHTS else None


def set_trainable(module: nn.Module, trainable: str) -> None:
    """Let every layer train (`all`), the last n (`last:n`; a norm counts as a layer) or the last n blocks (`head:n`)."""
    if trainable == "all":
        module.requires_grad_(True)
        return
    if not (match := re.fullmatch(r"(last|head):([1-9]\d*)", trainable)):
        raise ValueError(f"model.trainable is {trainable!r}: give 'all' or 'last:n', as in 'last:2', or 'head:n'")
    if match[1] == "last":
        unit, units = "layers", [list(layer.parameters(recurse=False)) for _, layer in reversed(layers(module))]
    else:
        unit, units = "blocks", [_parameters(module, block) for block in head_blocks(module)]
    if int(match[2]) > len(units):
        raise ValueError(f"model.trainable is {trainable!r} and the model has {len(units)} {unit}: give fewer")
    module.requires_grad_(False)
    for parameter in (p for unit in units[: int(match[2])] for p in unit):
        parameter.requires_grad_(True)


def _parameters(module: nn.Module, layer_names: Iterable[str]) -> list[nn.Parameter]:
    return [parameter for name in layer_names for parameter in module.get_submodule(name).parameters()]
