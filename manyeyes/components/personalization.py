"""What stays with the client: personal layers, a personal model, or a model adapted before it is evaluated."""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from manyeyes.components.batching import EpochBatching
from manyeyes.components.corrections import ProximalTerm
from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import component, option
from manyeyes.core.structure import head_blocks, is_norm, listed_head


@component("personal_layers", "matching")
class MatchingLayers:
    """The layers whose names match a pattern; `fc.*` includes the statistics of a BatchNorm in `fc`.

    A pattern that matches nothing is refused: the layers that it was meant for would be sent.
    """

    patterns: tuple[str, ...] = option((), "name patterns, such as [fc.*]")

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise ValueError(f"personal_layers.patterns is {self.patterns!r}: give a list of name patterns")
        object.__setattr__(self, "patterns", tuple(self.patterns))  # hashable, as masks are cached by it
        if not self.patterns:
            raise ValueError("personal_layers.patterns is empty: give at least one name pattern, such as [fc.*]")

    def parameter_names(self, module: nn.Module) -> set[str]:
        names = _tensor_names(module)
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"personal_layers.patterns: no layer of the model matches {pattern!r}; its parameters have names "
                    f"such as {', '.join(names[-4:])}"
                )
        return {name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)}


@component("personal_layers", "head")
class HeadLayers:
    """The last layers, counted as in the FedPer baseline: the classifier is 1, each block before it one more.

    A model may list its layers in its attribute `head`, from the classifier backwards. Those of any other model follow
    from its structure.
    """

    num_layers: int = option(1, "layers of the head, the classifier first", minimum=1)

    def parameter_names(self, module: nn.Module) -> set[str]:
        name = type(module).__name__
        blocks = head_blocks(module)
        if self.num_layers > len(blocks):
            names = ", ".join(block[0] for block in blocks)
            raise ValueError(
                f"personal_layers.num_layers={self.num_layers}, and the head of {name} has {len(blocks)} layers "
                f"({names}): choose at most {len(blocks)}"
            )
        known = {layer for layer, _ in module.named_modules()} | set(_tensor_names(module))
        for layer in listed_head(module)[: self.num_layers]:
            if layer not in known:
                raise ValueError(f"{name}.head lists {layer!r}, and the model has no layer of that name: correct it")
        return _tensors_below(module, [layer for block in blocks[: self.num_layers] for layer in block])


@component("personal_layers", "norms")
class NormLayers:
    """Every norm with its statistics: FedBN (Li et al. 2021)."""

    def parameter_names(self, module: nn.Module) -> set[str]:
        names = _tensors_below(module, [name for name, layer in module.named_modules() if is_norm(layer)])
        if not names:
            raise ValueError(f"personal_layers=norms: {type(module).__name__} has no norms: choose another model")
        return names


def _tensors_below(module: nn.Module, layers: Iterable[str]) -> set[str]:
    """Return the names of the tensors of the given layers; a tensor may be given by its own name too."""
    prefixes = tuple(f"{layer}." for layer in layers)
    return {name for name in _tensor_names(module) if f"{name}.".startswith(prefixes)}


def _tensor_names(module: nn.Module) -> list[str]:
    return [name for name, _ in (*module.named_parameters(), *module.named_buffers())]


ALL_LAYERS = ("*",)


@component("personal_model", "ditto")
class Ditto:
    """v_k <- v_k - lr (g(v_k) + lam (v_k - theta_t)); v_k is never sent (Li et al. 2021, Algorithm 1)."""

    lam: float = option(0.1, "Ditto's lambda: how strongly a personal model is tied to the server's", above=0)

    @property
    def personal_layers(self) -> MatchingLayers:
        return MatchingLayers(ALL_LAYERS)

    @property
    def correction(self) -> ProximalTerm:
        return ProximalTerm(self.lam)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if algorithm.personal_layers is not None:
            return "personal_model=ditto gives each client a whole model: set personal_layers=none"
        if algorithm.adaptation is not None:
            return "personal_model=ditto is evaluated with the personal models: set adaptation=none"
        return None


@component("adaptation", "finetune")
class FineTune:
    """Epochs over the client's own training examples, with its local optimizer, before each evaluation."""

    epochs: int = option(1, "epochs of fine-tuning before the model is evaluated", minimum=1)

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        return replace(
            algorithm,
            batching=EpochBatching(self.epochs, algorithm.batching.batch_size),
            client_weighting=WeightUniformly(),
            example_weighting=None,
            correction=None,
            personal_layers=MatchingLayers(ALL_LAYERS),
            privacy=None,
            personal_model=None,
            adaptation=None,
        )
