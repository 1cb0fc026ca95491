"""Files of unknown origin: JSON and YAML within bounds, and one sentence that names a file that cannot be read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import yaml

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 100  # of nested values; ours have five
INTEGER_TAG, MAX_DIGITS = "tag:yaml.org,2002:int", 1000  # Python prints no integers of over 4300 digits
SPARE_NODES = 10_000  # that aliases may add to a document, beyond one for each of its characters
MAX_REASON_CHARACTERS = 200  # of what a library says about a damaged file


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON document; any mistake in it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML document; any mistake in it, or aliases that multiply its size, are a ValueError."""
    try:
        loader = YAML_LOADER(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _expanded_size(node, {}, 0) > len(text) + SPARE_NODES:
                raise ValueError("its aliases repeat too many values")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, OverflowError, AttributeError, TypeError) as error:
        raise ValueError(first_line(error)) from error  # AttributeError and TypeError: of values with a wrong tag


def _expanded_size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """Return the number of values below a node, where each alias counts as what it stands for."""
    if id(node) in sizes:
        return sizes[id(node)]
    if depth > MAX_DEPTH:  # also of a value that contains itself
        raise ValueError("its values are nested too deeply")
    if node.tag == INTEGER_TAG and len(node.value) > MAX_DIGITS:
        raise ValueError(f"it has a number of more than {MAX_DIGITS} digits")
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    sizes[id(node)] = 1 + sum(_expanded_size(child, sizes, depth + 1) for child in children)
    return sizes[id(node)]


def first_line(error: BaseException) -> str:
    """Return the beginning of what an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}..."


@contextmanager
def named_if_damaged(path: Path | str, fix: str) -> Iterator[None]:
    """Turn whatever a library raises about a damaged file into a ValueError that names the file and says what to do.

    A sentence that names the file already is left as it is, and so is an error of the system, which names its file.
    """
    try:
        yield
    except Exception as error:
        raise_damage(path, error, fix)


def raise_damage(path: Path | str, error: Exception, fix: str) -> NoReturn:
    """Raise what `named_if_damaged` makes of an error: libraries for files raise nearly any about a damaged one."""
    is_named = type(error) is ValueError and str(path) in str(error)
    is_of_system = isinstance(error, OSError) and error.errno is not None and error.filename is not None
    if is_named or is_of_system or isinstance(error, MemoryError | ImportError):
        raise error
    reason = first_line(error).removesuffix(".")
    raise ValueError(f"{path} cannot be read ({reason}): {fix}") from error
