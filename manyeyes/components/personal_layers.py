"""Which layers stay with the client: it trains and keeps them, and never sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from manyeyes.components.validation import require_int
from manyeyes.core.registry import register


@register("personal_layers", "matching")
@dataclass(frozen=True)
class MatchingLayers:
    """The layers whose names match a pattern; `fc.*` names the statistics of a BatchNorm in `fc` too.

    A pattern that matches nothing is refused: what it was meant for would be sent.
    """

    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise ValueError(
                f"personal layers are a list of name patterns, and got {self.patterns!r}: put it in a list"
            )
        object.__setattr__(self, "patterns", tuple(self.patterns))  # a list cannot name the mask that it stands for
        if not self.patterns:
            raise ValueError("personal layers need at least one name pattern, such as 'fc.*'")

    def parameter_names(self, module: nn.Module) -> set[str]:
        names = _tensors(module)
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"no layer of the model matches {pattern!r}: its parameters are called like {', '.join(names[-4:])}"
                )
        return {name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)}


@register("personal_layers", "head")
@dataclass(frozen=True)
class HeadLayers:
    """The last layers, counted as the FedPer baseline does: the classifier is 1, each block before it one more.

    A model says in its `head` what these are, from the classifier on; a name in it that it does not have is refused:
    what it was meant for would be sent.
    """

    num_layers: int = 1

    def __post_init__(self) -> None:
        require_int("head layers", self.num_layers, 1)

    def parameter_names(self, module: nn.Module) -> set[str]:
        blocks: Any = getattr(module, "head", ())
        listed = isinstance(blocks, tuple | list) and all(isinstance(block, str) for block in blocks)
        if not listed or not blocks:  # others' models have a layer of that name
            raise ValueError(f"{type(module).__name__} does not say what its head is: name its layers with Layers(...)")
        if self.num_layers > len(blocks):
            raise ValueError(
                f"a head of {self.num_layers} layers is asked of a model that has {len(blocks)} for it "
                f"({', '.join(blocks)}): ask for fewer"
            )
        known = {name for name, _ in module.named_modules()} | set(_tensors(module))
        for block in blocks[: self.num_layers]:
            if block not in known:
                raise ValueError(f"{type(module).__name__} counts {block!r} to its head and has no layer of that name")
        return _below(module, blocks[: self.num_layers])


@register("personal_layers", "norms")
@dataclass(frozen=True)
class NormLayers:
    """Every norm with its statistics: FedBN (Li et al. 2021)."""

    def parameter_names(self, module: nn.Module) -> set[str]:
        found = _below(module, [name for name, part in module.named_modules() if _is_norm(part)])
        if not found:
            raise ValueError(f"{type(module).__name__} has no norms that could stay with clients: choose another model")
        return found


def _is_norm(part: nn.Module) -> bool:
    return isinstance(part, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm) or hasattr(part, "running_mean")


def _below(module: nn.Module, parts: Iterable[str]) -> set[str]:
    """The tensors of those parts of a module, each a layer or a tensor itself."""
    parts = tuple(parts)
    starts = tuple(f"{part}." for part in parts)
    return {name for name in _tensors(module) if name in parts or name.startswith(starts)}


def _tensors(module: nn.Module) -> list[str]:
    return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
