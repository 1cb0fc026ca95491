"""The blocks of any module, from its first to its classifier: what a head and its last layers are counted in."""

from collections.abc import Iterator

from torch import nn

CONTAINERS = nn.Sequential, nn.ModuleList, nn.ModuleDict


def is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm) or hasattr(layer, "running_mean")


def head_blocks(module: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of the layers of each block, from the classifier backwards.

    A model may list them in an attribute `head`. Of any other model they follow from its structure: a block is an item
    of a list or sequence of layers, or a layer outside of one; norms belong to the block before them.
    """
    if listed := listed_head(module):
        return [(name,) for name in listed]
    return [tuple(block) for block in reversed(_blocks(module))]


def listed_head(module: nn.Module) -> tuple[str, ...]:
    """Return the attribute `head` of a module where it is a list of names; in other libraries, it is a layer."""
    head = getattr(module, "head", ())
    is_list = isinstance(head, tuple | list) and all(isinstance(layer, str) for layer in head)
    return tuple(head) if is_list else ()


def _blocks(module: nn.Module) -> list[list[str]]:
    blocks: list[list[str]] = []
    for name, layer in _block_layers("", module):
        if is_norm(layer) and blocks:
            blocks[-1].append(name)
        else:
            blocks.append([name])
    return blocks


def _block_layers(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers outside of lists, and the items of lists, by name and in order of registration."""
    children = _layers_with_parameters(module)
    for name, child in children:
        wraps_model = len(children) == 1 and bool(_layers_with_parameters(child)) and not prefix
        if isinstance(child, CONTAINERS) or wraps_model or _has_list_of_blocks(child):
            yield from _block_layers(f"{prefix}{name}.", child)
        else:
            yield f"{prefix}{name}", child


def _has_list_of_blocks(module: nn.Module) -> bool:
    """Return whether a list in the module, at any depth, has blocks only.

    A convolution with its norm is no block, nor is a sequence, which is how torchvision writes the parts of a block.
    """
    lists = (layer for layer in module.modules() if isinstance(layer, CONTAINERS))
    items = ([item for _, item in _layers_with_parameters(layer)] for layer in lists)
    return any(blocks and all(_is_block(item) for item in blocks) for blocks in items)


def _is_block(module: nn.Module) -> bool:
    weighted = [layer for layer in module.modules() if list(layer.parameters(recurse=False)) and not is_norm(layer)]
    return len(weighted) > 1 and not isinstance(module, CONTAINERS)


def _layers_with_parameters(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module.named_children() if any(True for _ in child.parameters())]
