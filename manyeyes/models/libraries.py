"""Models of timm, torchvision and transformers: `timm:NAME`, `torchvision:NAME`, `transformers:NAME_OR_FOLDER`.

Each is built for the classes of the data. Its weights are the library's own, or are read from a file or a URL.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from manyeyes.core.registry import register_library, suggestion
from manyeyes.io.packages import MissingPackageError, import_optional, torch_version
from manyeyes.models.pretrained import OWN_WEIGHTS, PretrainedSource, WeightsInput, load_pretrained

SIZE_OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {  # of torchvision's models for images of one size
    "vit_": lambda size: {"image_size": size},
    "maxvit": lambda size: {"input_size": (size, size)},
}


@register_library("model", "timm")
def timm_model(name: str, classes: int, size: int, pretrained: PretrainedSource = None) -> nn.Module:
    """A model of timm (pytorch-image-models), such as `timm:vit_tiny_patch16_224` or `timm:resnet18.a1_in1k`."""
    timm, config = _timm_config(name)
    options = {"img_size": size} if config.fixed_input_size else {}
    is_own = pretrained in OWN_WEIGHTS
    with _one_sentence(f"timm:{name}", is_own):
        module: nn.Module = timm.create_model(name, pretrained=is_own, num_classes=classes, **options)
    if pretrained and not is_own:
        # timm's families have this function for weights in another layout, such as positions of another image size
        convert = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
        load_pretrained(module, pretrained, convert and (lambda state: convert(state, module)))
    return module


def _timm_config(name: str) -> tuple[Any, Any]:
    """Return timm, and what it says about the weights of a model."""
    timm = _library("timm", name)
    if not timm.is_model(name):
        known = suggestion(name.partition(".")[0], timm.list_models())
        raise ValueError(f"model=timm:{name} is not a model of timm {timm.__version__}{known}: see timm.list_models()")
    with _one_sentence(f"timm:{name}"):
        config = timm.models.get_pretrained_cfg(name, allow_unregistered=False)
    return timm, config


@register_library("model", "torchvision")
def torchvision_model(name: str, classes: int, size: int, pretrained: PretrainedSource = None) -> nn.Module:
    """A classification model of torchvision, such as `torchvision:resnet50`."""
    models = _torchvision_models(name)
    options = next((make(size) for prefix, make in SIZE_OPTIONS.items() if name.startswith(prefix)), {})
    with _one_sentence(f"torchvision:{name}"):
        module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    if pretrained in OWN_WEIGHTS:
        pretrained = models.get_model_weights(name).DEFAULT.url
    if pretrained:
        load_pretrained(module, pretrained)
    return module


def _torchvision_models(name: str) -> Any:
    models = _library("torchvision", name).models
    known = models.list_models(module=models)
    if name not in known:
        fix = "see torchvision.models.list_models()"
        raise ValueError(f"model=torchvision:{name} is not a model of torchvision{suggestion(name, known)}: {fix}")
    return models


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, dict(options)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.model(pixel_values=x_BCHW, **self.options).logits


@register_library("model", "transformers")
def transformers_model(name: str, classes: int, size: int, pretrained: PretrainedSource = None) -> nn.Module:
    """An image classifier of transformers: of the hub, in a folder, or a kind of model, such as `transformers:vit`."""
    transformers = _library("transformers", name)
    auto, is_own = transformers.AutoModelForImageClassification, pretrained in OWN_WEIGHTS
    with _one_sentence(f"transformers:{name}", from_hub=True):
        is_kind = name in transformers.CONFIG_MAPPING
        config = (transformers.AutoConfig.for_model if is_kind else transformers.AutoConfig.from_pretrained)(name)
        has_weights = bool(pretrained)  # whose image size the model keeps
        if is_kind:
            config.architectures = []  # that `from_config` iterates over
            if is_own:
                raise ValueError("a kind of model has no weights of its own; name a model of the hub or a folder")
        has_other_size = getattr(config, "image_size", size) not in (size, [size, size])
        if has_other_size and not has_weights:
            config.image_size = size
        config.num_labels = classes
        if is_own:
            model = auto.from_pretrained(name, config=config, ignore_mismatched_sizes=True)
        else:
            model = auto.from_config(config)
    module = Logits(model, {"interpolate_pos_encoding": True} if has_other_size and has_weights else {})
    if pretrained and not is_own:
        load_pretrained(module, pretrained, lambda state: {f"model.{key}": value for key, value in state.items()})
    return module.train()


def library_weights_input(name: str) -> WeightsInput | None:
    """Return the images that the weights of `timm:NAME`, `torchvision:NAME` or `transformers:NAME` expect."""
    library, _, name = name.partition(":")
    if library == "timm":
        _, config = _timm_config(name)
        return WeightsInput(config.input_size[-1], tuple(config.mean), tuple(config.std))
    if library == "torchvision":
        transforms = _torchvision_models(name).get_model_weights(name).DEFAULT.transforms()
        return WeightsInput(transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std))
    processing = _library("transformers", name).image_processing_utils.BaseImageProcessor
    try:
        options, _ = processing.get_image_processor_dict(name)
    except OSError:  # a folder or repository of weights alone
        return None
    size = options.get("crop_size") or options.get("size") or {}
    pixels = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    mean, std = options.get("image_mean"), options.get("image_std")
    return WeightsInput(pixels, tuple(mean), tuple(std)) if pixels and mean and std else None


def _library(package: str, name: str) -> Any:
    """Import a package; a missing or broken one is a ValueError that says how to install it."""
    try:
        return import_optional(package)
    except MissingPackageError:
        raise
    except Exception as error:  # torchvision for another PyTorch raises RuntimeError
        problem = f"model={package}:{name} needs {package}, which cannot be imported ({_first_line(error)})"
        fix = f"install the version of torchvision that fits torch {torch_version()}"
        raise ValueError(f"{problem}: {fix}") from error


@contextmanager
def _one_sentence(model: str, from_hub: bool = False) -> Iterator[None]:
    """Turn what a library raises into one sentence."""
    try:
        yield
    except Exception as error:  # of the network, a hub, or the library's own kinds
        fix = "check the name and the network, or give a file or a folder" if from_hub else "check its name and options"
        raise ValueError(f"model={model} cannot be built ({_first_line(error)}): {fix}") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".:")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
