"""A module as a function of one flat vector: its trainable parameters, then its live BatchNorm statistics."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Theta = Tensor | Sequence[Tensor]  # one vector [P], or its pieces
LARGE_PARAMETER_FRACTION = 1 / 8  # of the trainable elements, from which a parameter is a piece of its own
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
INSTANCE_NORMS = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
MASK_32_BITS = 0xFFFFFFFF
DROPPED_DIMS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # trailing ones dropped together


class SeededDropout(nn.Module):
    """A dropout layer that hashes (seed, layer, position of the unit); every step has a new seed."""

    seed: Tensor

    def __init__(self, p: float, dropped_dims: int, layer: int) -> None:
        super().__init__()
        self.p, self.dropped_dims, self.layer = p, dropped_dims, layer
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        shape = x.shape[: x.dim() - self.dropped_dims] + (1,) * self.dropped_dims
        positions = torch.arange(shape.numel(), device=x.device).view(shape)
        mask = mix_bits(positions + mix_bits(self.seed + self.layer)) >= int(self.p * 2**32)
        return x * mask / (1 - self.p) if self.p < 1 else x * 0


def mix_bits(number: Tensor) -> Tensor:
    """Return 32 well-mixed bits of each number: the finalizer of MurmurHash3."""
    number = number & MASK_32_BITS
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & MASK_32_BITS
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & MASK_32_BITS
    return number ^ (number >> 16)


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of the module in which every dropout layer is a SeededDropout."""
    module = copy.deepcopy(module)
    children = [(parent, name, child) for parent in module.modules() for name, child in parent.named_children()]
    dropouts: list[tuple[nn.Module, str, Any]] = [child for child in children if type(child[2]) in DROPPED_DIMS]
    for layer, (parent, name, dropout) in enumerate(dropouts):
        setattr(parent, name, SeededDropout(dropout.p, DROPPED_DIMS[type(dropout)], layer))
    return module


class FlatModel:
    """`num_trainable` parameters [P] and `num_shared` values [W] in all; everything else stays in the module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.structure = module  # whose layers have names: the whole model, where `module` is its head
        parameters, buffers = _trained_parameters(module), _norm_buffers(module)
        statistics = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        self._counters = {name: buffer for name, buffer in buffers.items() if name not in statistics}
        self._tensors = {**parameters, **statistics}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}  # in the vector's order
        self._sizes = [t.numel() for t in self._tensors.values()]
        self._num_parameters = len(parameters)
        self.num_trainable, self.num_shared = sum(self._sizes[: self._num_parameters]), sum(self._sizes)
        self._seeds = [f"{name}.seed" for name, child in module.named_modules() if isinstance(child, SeededDropout)]
        layers = {name: module.get_submodule(name.rpartition(".")[0]) for name in module.state_dict()}
        self._float32_names = {name for name, layer in layers.items() if hasattr(layer, "running_mean")}
        others = self._tensors.keys() | self._float32_names
        self._fixed = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if n not in others}

    @property
    def trained_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every trainable parameter, by name."""
        return dict(list(self.shapes.items())[: self._num_parameters])

    @property
    def pieces(self) -> list[list[int]]:
        """The sizes of the parameters of each piece; a large one is its own piece, so that its gradient is not copied."""
        pieces: list[list[int]] = [[]]
        for size in self._sizes[: self._num_parameters]:
            if size >= LARGE_PARAMETER_FRACTION * self.num_trainable:
                pieces += [[size], []]
            else:
                pieces[-1].append(size)
        return [sizes for sizes in pieces if sizes]

    def read(self) -> Tensor:
        """Return a copy of the module's values [W]."""
        return torch.cat([t.detach().reshape(-1) for t in self._tensors.values()])

    @torch.no_grad()
    def write(self, weights_W: Tensor) -> None:
        for tensor, values in zip(self._tensors.values(), weights_W.split(self._sizes), strict=True):
            tensor.copy_(values.view_as(tensor))

    def to_memory_format(self, images: Tensor) -> Tensor:
        """Return images in the memory format that is fastest: contiguous, unless the model's class says otherwise."""
        is_channels_last = images.device.type in getattr(self.module, "channels_last", ())
        return images.contiguous(memory_format=torch.channels_last if is_channels_last else torch.contiguous_format)

    def __call__(self, theta: Theta, statistics: Tensor, images: Tensor, seed: Tensor | None = None) -> Tensor:
        """Return the module's outputs with these values; in training mode, BatchNorm updates `statistics` in place.

        `theta` is one vector [P], or its `pieces`. The images' type is the one that is computed in; BatchNorm keeps
        float32 for its own values. The `seed` decides what layers of SeededDropout drop.
        """
        values = self._values(theta, statistics)
        if images.dtype != torch.float32:
            values |= {name: t.to(images.dtype) for name, t in self._fixed.items() if t.is_floating_point()}
            values |= {name: tensor.float() for name, tensor in values.items() if name in self._float32_names}
        values |= {name: counter.clone() for name, counter in self._counters.items()}  # the module's must not change
        if seed is not None:
            values |= dict.fromkeys(self._seeds, seed)
        outputs = functional_call(self.module, values, (images,))
        if not isinstance(outputs, Tensor):
            model, kind = type(self.module).__name__, type(outputs).__name__
            raise ValueError(f"{model} returns a {kind} from forward: return one tensor, the class scores [B, C]")
        return outputs

    def _values(self, theta: Theta, statistics: Tensor) -> dict[str, Tensor]:
        if isinstance(theta, Tensor):
            flat = list(theta.split(self._sizes[: self._num_parameters]))
        else:
            flat = [tensor for piece, sizes in zip(theta, self.pieces, strict=True) for tensor in piece.split(sizes)]
        if statistics.numel():
            flat += statistics.split(self._sizes[self._num_parameters :])
        named = zip(self._tensors.items(), flat, strict=True)
        return {name: values.view(tensor.shape) for (name, tensor), values in named}

    def mask(self, is_chosen: Callable[[str], bool]) -> Tensor:
        """Return a mask [W], true for the values of the tensors whose name is chosen."""
        tensors = self._tensors.items()
        return torch.cat([torch.full_like(t, is_chosen(name), dtype=torch.bool).flatten() for name, t in tensors])


def _trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no parameter that trains: set requires_grad on some")
    return parameters


def _norm_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the statistics and counters of the module's live norms, by name."""
    buffers: dict[str, Tensor] = {}
    for name, norm in module.named_modules():
        if isinstance(norm, BATCH_NORMS + INSTANCE_NORMS):
            if norm.track_running_stats and norm.momentum is None:
                raise ValueError(f"norm {name} averages over all batches ever seen (momentum=None): give it a momentum")
            buffers |= norm.named_buffers(prefix=name, recurse=False)
    return buffers
