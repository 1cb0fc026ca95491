"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): what trains and travels is small, the model stays fixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.core.registry import check_options, option
from manyeyes.core.structure import head_blocks

LISTED_LAYERS = 4  # that an error names


@dataclass(frozen=True)
class Adapter:
    """Which layers get an adapter, and of which rank; the classifier is trained in full."""

    name: str = option("none", "lora trains low-rank adapters and the classifier alone", choices=("none", "lora"))
    rank: int = option(8, "rank of the adapters", minimum=1)
    alpha: float = option(8.0, "the adapters' output is scaled by alpha / rank", above=0)
    targets: tuple[str, ...] = option(
        (), "names or patterns of linear and 1x1 convolution layers, such as [qkv,proj]; []: all"
    )

    def __post_init__(self) -> None:
        check_options(self, "model.adapter")


class LoRALinear(nn.Linear):
    """y = W x + b + scale B A x, of which A and B train; B starts at 0."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.lora_scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


class LoRAConv2d(nn.Conv2d):
    """The same for a 1x1 convolution."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, x: Tensor) -> Tensor:
        down = F.conv2d(x, self.lora_a[:, :, None, None], stride=self.stride)
        return super().forward(x) + self.lora_scale * F.conv2d(down, self.lora_b[:, :, None, None])


def add_adapters(module: nn.Module, adapter: Adapter) -> list[str]:
    """Add an adapter to each target layer, in place, and let only adapters and classifier train; return the targets.

    The names of the module's own tensors stay. `lora_a` starts as the weight of a linear layer does, `lora_b` at 0.
    """
    classifier = next(iter(head_blocks(module)), ())
    adaptable = [name for name, layer in module.named_modules() if _kind(layer) and not _is_in(name, classifier)]
    targets = _chosen(adaptable, adapter.targets)
    module.requires_grad_(False)
    for name in targets:
        _adapt(module.get_submodule(name), adapter)
    for name in classifier:
        module.get_submodule(name).requires_grad_(True)
    return targets


def _chosen(adaptable: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the layers that get an adapter; a pattern that matches none is refused."""
    unmatched = [pattern for pattern in patterns if not any(_matches(name, [pattern]) for name in adaptable)]
    if unmatched or not adaptable:
        names = ", ".join(adaptable[-LISTED_LAYERS:])
        problem = f"model.adapter.targets: {unmatched[0]!r} matches" if unmatched else "model.adapter=lora finds"
        fix = f"name some of its layers (such as {names})" if adaptable else "train all of it with model.adapter=none"
        raise ValueError(f"{problem} no linear or 1x1 convolution layer of the model before its classifier: {fix}")
    return [name for name in adaptable if not patterns or _matches(name, patterns)]


def _kind(layer: nn.Module) -> type[nn.Linear] | type[nn.Conv2d] | None:
    """Return the class of a layer with an adapter; None for layers that cannot have one, such as subclasses."""
    if type(layer) is nn.Linear:
        return LoRALinear
    is_plain = (
        type(layer) is nn.Conv2d and layer.kernel_size == (1, 1) and layer.groups == 1 and layer.padding == (0, 0)
    )
    return LoRAConv2d if is_plain else None


def _adapt(layer: nn.Module, adapter: Adapter) -> None:
    kind, weight = _kind(layer), layer.get_parameter("weight")
    assert kind is not None, "only layers that can have an adapter are targets"
    lora_a = weight.new_empty(adapter.rank, weight.shape[1])
    nn.init.kaiming_uniform_(lora_a, a=math.sqrt(5))
    layer.__class__ = kind
    layer.register_parameter("lora_a", nn.Parameter(lora_a))
    layer.register_parameter("lora_b", nn.Parameter(weight.new_zeros(len(weight), adapter.rank)))
    layer.lora_scale = adapter.alpha / adapter.rank  # type: ignore[assignment]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches the whole name of a layer, or the end of it after a dot."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}") for pattern in patterns)


def _is_in(name: str, blocks: Sequence[str]) -> bool:
    return any(name == block or name.startswith(f"{block}.") for block in blocks)
