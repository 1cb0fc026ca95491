"""Typed OmegaConf nodes from the options that components declare: Hydra converts and checks values by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import AnyNode, BooleanNode, DictConfig, FloatNode, IntegerNode, ListConfig, Node, StringNode

from manyeyes.core.registry import Option, options_of

SCALARS: dict[Any, type[Any]] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}


def group_node(name: str, options: Iterable[Option]) -> DictConfig:
    """Return the node of a component: its name and its options."""
    nodes = {"name": StringNode(name, is_optional=False)} | dict_node(options)
    return DictConfig(nodes)


def dict_node(options: Iterable[Option]) -> dict[str, Any]:
    """Return a node for each option that a person can type; options whose default is an object are left out."""
    return {option.name: option_node(option) for option in options if is_plain(option)}


def option_node(option: Option) -> Node:
    """Return the node of one option, with its type and default."""
    if nested := nested_options(option):
        return DictConfig(dict_node(nested))
    kind, optional = _kind(option)
    value = "???" if option.default is MISSING else option.default
    if (get_origin(kind) or kind) in (tuple, list):
        element = next(iter(get_args(kind)), Any)
        content = list(value) if isinstance(value, tuple | list) else value
        return ListConfig(content, element_type=element if element in SCALARS else Any, is_optional=optional)
    return SCALARS[kind](value, is_optional=optional) if kind in SCALARS else AnyNode(value)


def nested_options(option: Option) -> tuple[Option, ...]:
    """Return the options of an option that is a component itself, such as a schedule."""
    if not is_dataclass(option.default) or isinstance(option.default, type):
        return ()
    return tuple(
        Option(one.name, one.type, getattr(option.default, one.name), one.help)
        for one in options_of(type(option.default))
    )


def is_plain(option: Option) -> bool:
    """Whether an option's default can be written in YAML, so that the option can be set on the command line."""
    plain = (int, float, bool, str, tuple, list, dict, NoneType)
    return option.default is MISSING or bool(nested_options(option)) or isinstance(option.default, plain)


def _kind(option: Option) -> tuple[Any, bool]:
    """Return an option's type without None, and whether it may be None; unannotated: the type of its default."""
    kind = option.type
    if kind in (Any, None, NoneType):
        return (Any if option.default in (MISSING, None) else type(option.default)), True
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        return (kinds[0] if len(kinds) == 1 else Any), NoneType in get_args(kind)
    return kind, option.default is None
