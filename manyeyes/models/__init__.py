"""Models by name: `build("resnet18", classes=17)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from manyeyes.models.layers import layers, set_trainable
from manyeyes.models.lenet import LeNet
from manyeyes.models.linear import Linear
from manyeyes.models.mobilenet_v1 import MobileNetV1
from manyeyes.models.mobilenet_v2 import MobileNetV2
from manyeyes.models.norms import (
    NORMS,
    FrozenBatchNorm2d,
    freeze_norms,
    group_count,
    group_norms,
    norm_layer,
)
from manyeyes.models.pretrained import Pretrained, load_pretrained
from manyeyes.models.resnet import ResNet

__all__ = [
    "MODELS",
    "NORMS",
    "FrozenBatchNorm2d",
    "Pretrained",
    "build_model",
    "freeze_norms",
    "group_count",
    "group_norms",
    "layers",
    "load_pretrained",
    "set_trainable",
]


@dataclass(frozen=True)
class ModelArgs:
    """What a model is made from; a model takes what it needs."""

    classes: int
    norm: str
    size: int
    width: int
    bottleneck: int


# 32 norm groups as in FLAIR's released code; 8 for the MobileNets as in that of Hsu et al. (32 would leave single
# channels to normalise in MobileNet-v1's first blocks, where the gradient of the scale before is then rounding error).
MODELS: dict[str, Callable[[ModelArgs], nn.Module]] = {
    "linear": lambda s: Linear(s.classes, s.size),
    "lenet": lambda s: LeNet(s.classes, s.size, s.width),
    "resnet18": lambda s: ResNet("resnet18", s.classes, norm_layer(s.norm, 32)),
    "resnet34": lambda s: ResNet("resnet34", s.classes, norm_layer(s.norm, 32)),
    "mobilenet_v1": lambda s: MobileNetV1(s.classes, norm_layer(s.norm, 8)),
    "mobilenet_v2": lambda s: MobileNetV2(s.classes, norm_layer(s.norm, 8), s.bottleneck),
}


def build_model(
    name: str,
    classes: int,
    *,
    norm: str = "group",
    size: int = 32,
    width: int = 64,
    bottleneck: int = 0,
    pretrained: str | os.PathLike[str] | None = None,
    trainable: str = "all",
    seed: int = 0,
) -> nn.Module:
    """The model of that name, on the CPU: `[B, 3, size, size]` in, `[B, classes]` logits out.

    `width` is for lenet and `bottleneck` for mobilenet_v2; linear and lenet have no norm. `weights` as in
    `load_pretrained`, `train` as in `set_trainable`. The initial weights depend on `seed` and on no global generator.
    """
    if name not in MODELS:
        raise ValueError(f"Model {name!r} is not known; choose one of {', '.join(MODELS)}.")
    if norm not in NORMS:
        raise ValueError(f"Norm {norm!r} is not known; choose one of {', '.join(NORMS)}.")
    least = {"classes": (classes, 1), "size": (size, 1), "width": (width, 1), "bottleneck": (bottleneck, 0)}
    for what, (value, bound) in least.items():
        if value < bound:
            raise ValueError(f"Model {name} got {what}={value}; give {bound} or more.")
    if width != 64 and name != "lenet":
        raise ValueError(f"Model {name} has one width and got width={width}; leave it out.")
    if bottleneck and name != "mobilenet_v2":
        raise ValueError(f"Model {name} has no bottleneck and got bottleneck={bottleneck}; leave it out.")
    # torch.manual_seed would also reseed the GPUs' generators; only the CPU's is used, and given back as it was.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = MODELS[name](ModelArgs(classes, norm, size, width, bottleneck))
    set_trainable(model, trainable)
    if pretrained is not None:
        load_pretrained(model, pretrained)
    return model
