"""Layers that are faster than PyTorch's: the same functions of the same parameters."""

from torch import Tensor, nn


def has_small_zero_padding(layer: nn.Conv2d) -> bool:
    """Return whether a convolution has no dilation, and zero padding that is smaller than its kernel."""
    if isinstance(layer.padding, str) or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        return False
    return all(padding < kernel for padding, kernel in zip(layer.padding, layer.kernel_size, strict=True))


def padding_of(layer: nn.Conv2d) -> tuple[int, int]:
    """Return the padding of a convolution that was selected by `has_small_zero_padding`."""
    assert not isinstance(layer.padding, str), "a convolution with padding by name is not replaced"
    return layer.padding[0], layer.padding[1]


def clients_first(tensor: Tensor, dim: int | None, num_clients: int) -> Tensor:
    """Return the tensor with the client dimension in front; one that all clients share is expanded."""
    return tensor.expand(num_clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
