"""Pretrained weights: from a file, a URL or torchvision's published ones into a model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.models.layers import layers

PUBLISHED = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet34": "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "mobilenet_v2": "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
}

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Pretrained:
    """Which keys were loaded, which kept their fresh initialisation, and which of the file's were of no use."""

    loaded: tuple[str, ...]
    replaced: tuple[str, ...]
    ignored: tuple[str, ...]


def load_pretrained(module: nn.Module, source: str | os.PathLike[str]) -> Pretrained:
    """Load weights into the module, all or none; `source` is a file, a URL, or `imagenet` for torchvision's own.

    A classifier of another shape keeps its fresh initialisation, and so do a bottleneck that the file lacks and the
    classifier behind it. Statistics of batch norms that the module lacks are ignored; anything else is an error.
    """
    source = os.fspath(source)
    if source == "imagenet":
        source = _published(module)
    state = _download(source) if "://" in source else _read(Path(source).expanduser())
    report = _match(module, state, source)
    module.load_state_dict({key: state[key] for key in report.loaded}, strict=False)
    return report


def _match(module: nn.Module, state: dict[str, Tensor], source: str) -> Pretrained:
    own = module.state_dict()
    misshapen = {key for key, value in own.items() if key in state and state[key].shape != value.shape}
    fresh = _fresh_layers(layers(module)[-1][0], own, state, misshapen)
    replaced = tuple(key for key in own if _layer(key) in fresh)
    loaded = tuple(key for key in own if _layer(key) not in fresh)
    for key in loaded:
        if key not in state:
            raise ValueError(f"Weights {source} lack {key!r}; give weights of this model.")
        if key in misshapen:
            shapes = f"{tuple(state[key].shape)}, where the model has {tuple(own[key].shape)}"
            raise ValueError(f"Weights {source} hold {key!r} of shape {shapes}; give weights of this model.")
    ignored = tuple(key for key in state if key not in own)
    for key in ignored:
        if key.rpartition(".")[2] not in STATISTICS:
            raise ValueError(f"Weights {source} hold {key!r}, which the model lacks; give weights of this model.")
    return Pretrained(loaded, replaced, ignored)


def _fresh_layers(
    classifier: str, own: Mapping[str, Tensor], state: Mapping[str, Tensor], misshapen: set[str]
) -> set[str]:
    bottleneck = {key for key in own if _layer(key) == "bottleneck"}
    if any(key in misshapen or key not in state for key in bottleneck):
        return {"bottleneck", classifier}  # a classifier means nothing on other features than its own
    return {classifier} & {_layer(key) for key in misshapen}


def _layer(key: str) -> str:
    return key.rpartition(".")[0]


def _published(module: nn.Module) -> str:
    architecture = getattr(module, "architecture", type(module).__name__)
    if architecture not in PUBLISHED:
        known = ", ".join(PUBLISHED)
        raise ValueError(f"There are no 'imagenet' weights for {architecture}, only for {known}; give a file or a URL.")
    return PUBLISHED[architecture]


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise ValueError(f"Weights {path} are no .pth, .pt or .safetensors file, URL or 'imagenet'; give one of these.")
    if not path.is_file():
        raise ValueError(f"Weights file {path} does not exist; check the path.")
    try:
        state = _read_safetensors(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # a broken file can raise nearly anything
        raise ValueError(
            f"Weights file {path} cannot be read ({type(error).__name__}): it is truncated or holds more than tensors; "
            "fetch it anew, or save the model's state_dict() alone."
        ) from error
    return _checked(state, str(path))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file  # here, so that models need nothing but torch

    return load_file(path)


def _download(url: str) -> dict[str, Tensor]:
    name = url.rpartition("/")[2]
    # torch.hub checks no hash where the name has none, and keeps files by name, so another's model.pth would be taken.
    if not re.search(r"-[0-9a-f]{8,}\.(pth|pt)$", name):
        raise ValueError(f"URL {url} does not end in a hash, as in 'name-0123abcd.pth'; download it and give the file.")
    try:
        state = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
        )
    except Exception as error:  # network, hash or a broken file
        cached = Path(torch.hub.get_dir(), "checkpoints", name)
        if cached.exists():
            raise ValueError(
                f"Weights {url} were kept in {cached}, which is broken; delete it and try again."
            ) from error
        reason = str(error).partition("\n")[0]
        raise ValueError(f"Weights {url} could not be fetched: {reason}; check the URL, or give a file.") from error
    return _checked(state, url)


def _checked(state: object, source: str) -> dict[str, Tensor]:
    found = type(state).__name__
    if isinstance(state, dict):
        if state and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
            return state
        found = f"a dict of {', '.join(map(repr, list(state)[:3])) or 'nothing'}"
    raise ValueError(f"Weights {source} hold {found}, not a state dict; save the model's state_dict() alone.")
