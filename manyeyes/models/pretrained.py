"""Loading pretrained weights from a file, a URL or torchvision's published ones into a model."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.models.inspection import layers

PUBLISHED_URLS = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet34": "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "mobilenet_v2": "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
}
NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Pretrained:
    """Which keys were loaded, which kept their new initialization, and which of the file were not used."""

    loaded: tuple[str, ...]
    replaced: tuple[str, ...]
    ignored: tuple[str, ...]


def load_pretrained(module: nn.Module, source: str | os.PathLike[str]) -> Pretrained:
    """Load weights into the module, all or none; `source` is a file, a URL, or `imagenet` for torchvision's weights.

    A classifier of another shape keeps its new initialization, as do a bottleneck that the file does not have and the
    classifier after it. Statistics of batch norms that the module does not have are ignored. Else the keys must agree.
    """
    source = os.fspath(source)
    if source == "imagenet":
        architecture = getattr(module, "architecture", type(module).__name__)
        if architecture not in PUBLISHED_URLS:
            problem = f"has no weights for {architecture}, only for {', '.join(PUBLISHED_URLS)}"
            raise ValueError(f"model.pretrained is 'imagenet', which {problem}: give a file or a URL")
        source = PUBLISHED_URLS[architecture]
    state = _check_state_dict(_download(source) if "://" in source else _read(Path(source).expanduser()), source)
    report = _match(module, state, source)
    module.load_state_dict({key: state[key] for key in report.loaded}, strict=False)
    return report


def _match(module: nn.Module, state: dict[str, Tensor], source: str) -> Pretrained:
    """Return what is loaded from a file; raise ValueError where file and model differ in more than the classifier."""
    expected = module.state_dict()
    misshapen = {key for key, value in expected.items() if key in state and state[key].shape != value.shape}
    classifier = layers(module)[-1][0]
    layer_names = {key: key.rpartition(".")[0] for key in expected}
    new_layers = {classifier} & {layer_names[key] for key in misshapen}
    if any(layer_names[key] == "bottleneck" for key in misshapen | (expected.keys() - state.keys())):
        new_layers = {"bottleneck", classifier}  # a classifier is useless on features it was not trained on
    replaced = tuple(key for key in expected if layer_names[key] in new_layers)
    loaded = tuple(key for key in expected if layer_names[key] not in new_layers)
    ignored = tuple(key for key in state if key not in expected)
    shapes = {key: f"shape {tuple(state[key].shape)} and the model {tuple(expected[key].shape)}" for key in misshapen}
    problems = (
        *(f"no {key!r}" for key in loaded if key not in state),
        *(f"{key!r} of {shapes[key]}" for key in loaded if key in misshapen),
        *(f"{key!r} and the model does not" for key in ignored if key.rpartition(".")[2] not in NORM_STATISTICS),
    )
    if problems:
        raise ValueError(f"weights {source} have {problems[0]}: give weights of this model")
    return Pretrained(loaded, replaced, ignored)


def _read(path: Path) -> object:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise ValueError(f"model.pretrained is {path}: give a .pth, .pt or .safetensors file, a URL or 'imagenet'")
    if not path.is_file():
        raise ValueError(f"model.pretrained is {path}, which does not exist: check the path")
    try:
        if path.suffix == ".safetensors":
            from manyeyes.io.tensors import read_tensors  # imported here so that models need nothing but torch

            return read_tensors(path).tensors
        return torch.load(path, "cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # a broken file can raise nearly anything
        problem = f"cannot be read ({type(error).__name__}), since it is truncated or has more than tensors"
        fix = "download it again, or save only the model's state_dict()"
        raise ValueError(f"weights file {path} {problem}: {fix}") from error


def _download(url: str) -> object:
    name = url.rpartition("/")[2]
    # torch.hub checks no hash where the name has none, and caches by name, so another model.pth could be loaded.
    if not re.search(r"-[0-9a-f]{8,}\.(pth|pt)$", name):
        raise ValueError(f"URL {url} does not end in a hash, as in 'name-0123abcd.pth': download it and give the file")
    progress = sys.stderr.isatty()
    try:
        return torch.hub.load_state_dict_from_url(url, None, "cpu", progress, check_hash=True, weights_only=True)
    except Exception as error:  # network, hash or a broken file
        if (cached := Path(torch.hub.get_dir(), "checkpoints", name)).exists():
            raise ValueError(f"the cached copy {cached} of {url} is broken: delete it and try again") from error
        reason = str(error).partition("\n")[0]
        raise ValueError(f"weights {url} could not be downloaded ({reason}): check the URL, or give a file") from error


def _check_state_dict(state: object, source: str) -> dict[str, Tensor]:
    """Return what a file has if it is a state dict, else raise ValueError."""
    content = type(state).__name__
    if isinstance(state, dict):
        if state and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
            return state
        content = f"a dict of {', '.join(map(repr, list(state)[:3])) or 'nothing'}"
    raise ValueError(f"weights {source} have {content} and no state dict: save only the model's state_dict()")
