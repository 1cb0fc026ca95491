"""The groups of settings of `manyeyes run`: what each can choose from, and the options of every choice.

Nothing is declared here: choices are what the registry holds, and options are what the components declare.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import AnyNode, BooleanNode, DictConfig, FloatNode, IntegerNode, ListConfig, Node, StringNode

import manyeyes.algorithms
import manyeyes.components
import manyeyes.data.partition
import manyeyes.data.registry
import manyeyes.engines.select
import manyeyes.privacy.mechanisms
import manyeyes.training.builtin_callbacks
import manyeyes.training.trackers  # noqa: F401  # which register themselves
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.registry import Option, catalog, libraries, lookup, names, options_of
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions
from manyeyes.models import model_options
from manyeyes.training.config import RunConfig

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
NO_COMPONENT = "none"  # switches off a slot of the named algorithm
OPTIONAL_SLOTS = ("partitioner", *(slot.name for slot in fields(Algorithm) if slot.default is None))


@cache
def run_options() -> tuple[Option, ...]:
    """Return the options at the top level: those of a run, and where it is kept."""
    folder = Option("folder", str, "", "where the run is kept; empty: runs/ and the time")
    return (*options_of(RunConfig), folder, Option("resume", str, "", "the folder of a run to continue"))


@cache
def preprocess_options() -> tuple[Option, ...]:
    return options_of(Preprocess)


@cache
def engine_options() -> tuple[Option, ...]:
    """Return the options of every engine."""
    return tuple(option for option in options_of(EngineOptions) if option.name != "engine")


@dataclass(frozen=True)
class Group:
    """A group of settings, such as `server_optimizer`: one component is chosen, or in a list several."""

    name: str
    slot: str  # of the registry
    default: str | None = None
    is_list: bool = False
    default_help: str = "default: the algorithm's"  # without a default

    def choices(self) -> tuple[str, ...]:
        """Return the names that can be chosen; import paths can be chosen too."""
        if self.name == "engine":
            return ("auto", *names("engine"))
        known = tuple(sorted(names(self.slot), key=lambda name: name != self.default))  # the default first
        return (*known, NO_COMPONENT) if self.name in OPTIONAL_SLOTS else known

    def options(self, choice: str) -> tuple[Option, ...]:
        """Return the options of a choice, with its defaults."""
        if choice == NO_COMPONENT:
            return ()
        if self.name == "engine":
            return engine_options()
        if self.name == "model":
            return model_options(choice)
        return lookup(self.slot, choice).options

    def catalog(self) -> dict[str, tuple[Option, ...]]:
        """Return the options of every choice, by name."""
        if self.name == "model":
            return {choice: model_options(choice) for choice in names("model")}
        if self.name == "engine":
            return dict.fromkeys(self.choices(), engine_options())
        switched_off: dict[str, tuple[Option, ...]] = {NO_COMPONENT: ()}
        return catalog(self.slot) | (switched_off if self.name in OPTIONAL_SLOTS else {})

    def prefix(self, choice: str) -> str:
        """Return the setting under which a choice has its options: the group, or its item of the group's list."""
        return f"{self.name}.{list_key(choice)}" if self.is_list else self.name


GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        Group("data", "dataset", "synthetic"),
        Group("partitioner", "partitioner", default_help="the users of the dataset"),
        Group("model", "model", "lenet"),
        Group("algorithm", "algorithm", "fedavg"),
        *(Group(slot, slot) for slot in SLOTS),
        Group("engine", "engine", "auto"),
        *(Group(f"{slot}s", slot, is_list=True, default_help="[]") for slot in ("tracker", "callback", "metric")),
    )
}


def user_choices(group: Group) -> re.Pattern[str]:
    """Return the pattern of what a group offers in addition to its own names: import paths, and names in libraries."""
    in_library = "|".join(f"{prefix}:[^\\s,\\[\\]'\"]+" for prefix in libraries(group.slot))
    return re.compile(f"{in_library}|{IMPORT_PATH.pattern}") if in_library else IMPORT_PATH


def list_key(choice: str) -> str:
    """Return the name under which an item of a list has its options: `callbacks.early_stopping.patience`."""
    return choice.rpartition(":")[2].replace(".", "_")


def setting_names(overrides: Iterable[str] = ()) -> Iterator[str]:
    """Yield the full name of every setting of every built-in choice, and of what overrides choose by import path."""
    yield from ("preprocess", *GROUPS)
    yield from (name for name, _ in setting_options(overrides))


def setting_options(overrides: Iterable[str] = ()) -> Iterator[tuple[str, Option]]:
    """Yield the full name and the option of every setting that is not a group."""
    yield from ((option.name, option) for option in run_options())
    yield from with_full_names(preprocess_options(), "preprocess")
    choices = [(group, choice) for group in GROUPS.values() for choice in group.choices()]
    for override in overrides:
        name, _, value = override.partition("=")
        if chosen_group := GROUPS.get(name.lstrip("+")):
            choices += ((chosen_group, import_path) for import_path in user_choices(chosen_group).findall(value))
    for group, choice in choices:
        yield from with_full_names(group.options(choice), group.prefix(choice))


def with_full_names(options: Iterable[Option], prefix: str) -> Iterator[tuple[str, Option]]:
    """Yield the full name of each option, and those of nested components too."""
    for option in options:
        yield f"{prefix}.{option.name}", option
        yield from with_full_names(nested_options(option), f"{prefix}.{option.name}")


@cache  # the built-in choices do not change
def boolean_settings() -> frozenset[str]:
    """Return the full names of the settings that are true or false."""
    return frozenset(name for name, option in setting_options() if _kind(option)[0] is bool)


SCALARS: dict[Any, type[Any]] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}


def dict_node(options: Iterable[Option]) -> dict[str, Any]:
    """Return a node for each option that can be typed; options whose default is an object are left out."""
    return {option.name: option_node(option) for option in options if is_plain(option)}


def option_node(option: Option) -> Node:
    if nested := nested_options(option):
        return DictConfig(dict_node(nested))
    kind, is_optional = _kind(option)
    value = "???" if option.default is MISSING else option.default
    if (get_origin(kind) or kind) in (tuple, list):
        element = next(iter(get_args(kind)), Any)
        content = list(value) if isinstance(value, tuple | list) else value
        return ListConfig(content, element_type=element if element in SCALARS else Any, is_optional=is_optional)
    return SCALARS[kind](value, is_optional=is_optional) if kind in SCALARS else AnyNode(value)


def nested_options(option: Option) -> tuple[Option, ...]:
    """Return the options of an option that is a component itself, such as a schedule."""
    if not is_dataclass(option.default):
        return ()
    if isinstance(option.default, type):
        return options_of(option.default)
    declared = options_of(type(option.default))
    return tuple(replace(nested, default=getattr(option.default, nested.name)) for nested in declared)


def is_plain(option: Option) -> bool:
    """Return whether an option's default can be written in YAML, so that it can be set on the command line."""
    plain = (int, float, bool, str, tuple, list, dict, NoneType)
    return option.default is MISSING or bool(nested_options(option)) or isinstance(option.default, plain)


def _kind(option: Option) -> tuple[Any, bool]:
    """Return an option's type without None, and whether it may be None; unannotated: the type of its default."""
    kind = option.type
    if kind in (Any, None, NoneType):
        return (Any if option.default in (MISSING, None) else type(option.default)), True
    if get_origin(kind) in (Union, UnionType):
        kinds = [alternative for alternative in get_args(kind) if alternative is not NoneType]
        return (kinds[0] if len(kinds) == 1 else Any), NoneType in get_args(kind)
    return kind, option.default is None
