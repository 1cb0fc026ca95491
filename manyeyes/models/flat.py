"""A module seen as a function of one flat vector: its trained parameters, then its live BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from manyeyes.models.dropout import SeededDropout

CHUNKED_NORM_MIN_ELEMENTS = 1 / 8  # of all that is trained


class FlatModel:
    """`trained` parameters [P] and `size` shared numbers [W] in all; what does not train stays in the module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not parameters:
            raise ValueError(f"{type(module).__name__} has no parameter that trains: set requires_grad on some")
        norms = {name: child for name, child in module.named_modules() if isinstance(child, _NormBase)}
        for name, norm in norms.items():
            if norm.track_running_stats and norm.momentum is None:
                raise ValueError(f"norm {name} averages over all batches ever seen (momentum=None): give it a momentum")
        buffers = {
            f"{prefix}.{name}" if prefix else name: buffer
            for prefix, norm in norms.items()
            for name, buffer in norm.named_buffers(recurse=False)
        }
        statistics = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        self._counters = {name: buffer for name, buffer in buffers.items() if name not in statistics}
        self._tensors = {**parameters, **statistics}
        self.num_trainable = sum(p.numel() for p in parameters.values())
        self.num_shared = sum(t.numel() for t in self._tensors.values())
        self._lengths = [t.numel() for t in self._tensors.values()]
        self._parameters = len(parameters)
        self._seeds = [f"{name}.seed" for name, child in module.named_modules() if isinstance(child, SeededDropout)]
        normed = {name for name, child in module.named_modules() if hasattr(child, "running_mean")}
        self._whole = {name for name in module.state_dict() if name.rpartition(".")[0] in normed}
        others = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._fixed = {
            name: tensor
            for name, tensor in others.items()
            if name not in self._tensors and name not in self._whole and tensor.is_floating_point()
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor in the vector, by name."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    @property
    def trained_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every trained parameter, by name."""
        return dict(list(self.shapes.items())[: self._parameters])

    @property
    def pieces(self) -> list[list[int]]:
        """The lengths of the trained parameters in pieces, of which a large parameter is one of its own.

        The gradient of a piece is put together from those of its parameters: a copy, which a large one is spared.
        """
        found: list[list[int]] = [[]]
        for length in self._lengths[: self._parameters]:
            if length >= CHUNKED_NORM_MIN_ELEMENTS * self.num_trainable:
                found += [[length], []]
            else:
                found[-1].append(length)
        return [lengths for lengths in found if lengths]

    def read(self) -> Tensor:
        """A copy of the module's numbers [W]."""
        return torch.cat([t.detach().reshape(-1) for t in self._tensors.values()])

    @torch.no_grad()
    def write(self, weights_W: Tensor) -> None:
        """Put the numbers back into the module."""
        for tensor, piece in zip(self._tensors.values(), weights_W.split(self._lengths), strict=True):
            tensor.copy_(piece.view_as(tensor))

    def to_memory_format(self, images: Tensor) -> Tensor:
        """Images as they should lie in memory: in plain order, but where the model's class says otherwise."""
        devices: tuple[str, ...] = getattr(self.module, "channels_last", ())
        layout = torch.channels_last if images.device.type in devices else torch.contiguous_format
        return images.contiguous(memory_format=layout)

    def __call__(
        self, theta: Tensor | Sequence[Tensor], statistics: Tensor, images: Tensor, seed: Tensor | None = None
    ) -> Tensor:
        """The module's outputs with these numbers; in training mode, BatchNorm updates `statistics` in place.

        What is trained is one vector [P], or its `pieces`. The images' type is the one that is computed in; BatchNorm
        keeps float32 for its own numbers. The `seed` decides what layers of SeededDropout drop.
        """
        whole = isinstance(theta, Tensor)
        cuts = [self._lengths[: self._parameters]] if whole else self.pieces
        found = [t for piece, cut in zip((theta,) if whole else theta, cuts, strict=True) for t in piece.split(cut)]
        if statistics.numel():
            found += statistics.split(self._lengths[self._parameters :])
        named = zip(self._tensors.items(), found, strict=True)
        numbers = {name: piece.view(tensor.shape) for (name, tensor), piece in named}
        if images.dtype != torch.float32:
            numbers |= {name: tensor.to(images.dtype) for name, tensor in self._fixed.items()}
            numbers |= {name: tensor.float() for name, tensor in numbers.items() if name in self._whole}
        numbers |= {name: counter.clone() for name, counter in self._counters.items()}  # the module's own must not move
        if seed is not None:
            numbers |= dict.fromkeys(self._seeds, seed)
        outputs = functional_call(self.module, numbers, (images,))
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{type(self.module).__name__} returns a {type(outputs).__name__} from forward: return one tensor, "
                "the scores of each class [B, C]"
            )
        return outputs

    def mask(self, chosen: Callable[[str], bool]) -> Tensor:
        """True where a number belongs to a tensor whose name is chosen [W]."""
        pieces = [torch.full((t.numel(),), chosen(name)) for name, t in self._tensors.items()]
        return torch.cat(pieces).to(next(iter(self._tensors.values())).device)
