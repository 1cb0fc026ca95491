"""The groups of settings of `manyeyes run`: what each can choose from, and the options of every choice.

Nothing is declared here: choices are what the registry holds, and options are what the components declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import manyeyes.algorithms
import manyeyes.components
import manyeyes.engines.select
import manyeyes.privacy.mechanisms
import manyeyes.training.builtin_callbacks  # noqa: F401  # which register themselves
from manyeyes.config.datasets import DATA_SOURCES
from manyeyes.config.nodes import nested_options
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.registry import Option, lookup, names, options_of
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions
from manyeyes.models import model_options
from manyeyes.training.config import RunConfig

NO_COMPONENT = "none"  # switches off a slot of the named algorithm
OPTIONAL_SLOTS = tuple(slot.name for slot in fields(Algorithm) if slot.default is None)
ENGINE_SETTINGS = tuple(option.name for option in options_of(EngineOptions) if option.name != "engine")
NOT_SETTINGS = (*ENGINE_SETTINGS, "engine", "trackers", "callbacks", "metrics", "progress", "title")
FOLDER_OPTIONS = (
    Option("folder", str, "", "where the run is kept; empty: runs/ and the time"),
    Option("resume", str, "", "the folder of a run to continue"),
)


@dataclass(frozen=True)
class Group:
    """A group of settings, such as `server_optimizer`: one component is chosen, or in a list several."""

    name: str
    slot: str  # of the registry
    default: str | None = None  # None: as the named algorithm has it
    is_list: bool = False

    def choices(self) -> tuple[str, ...]:
        """Return the names that can be chosen; import paths can be chosen too."""
        builtin: Mapping[str, tuple[str, ...]] = {
            "data": tuple(DATA_SOURCES),
            "engine": ("auto", *names("engine")),
        }
        found = builtin.get(self.name) or names(self.slot)
        return (*found, NO_COMPONENT) if self.name in OPTIONAL_SLOTS else found

    def options(self, choice: str) -> tuple[Option, ...]:
        """Return the options of a choice, with its defaults."""
        if choice == NO_COMPONENT:
            return ()
        if self.name == "engine":
            return engine_options()
        if self.name == "data" and ":" not in choice:
            return DATA_SOURCES[choice].options
        if self.name == "model":
            return model_options(choice)
        registration = lookup(self.slot, choice)
        return tuple(
            replace(option, default=registration.preset.get(option.name, option.default))
            for option in options_of(registration.factory)
        )


GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        Group("data", "dataset", "synthetic"),
        Group("model", "model", "lenet"),
        Group("algorithm", "algorithm", "fedavg"),
        *(Group(slot, slot) for slot in SLOTS),
        Group("engine", "engine", "auto"),
        Group("trackers", "tracker", is_list=True),
        Group("callbacks", "callback", is_list=True),
        Group("metrics", "metric", is_list=True),
    )
}


def engine_options() -> tuple[Option, ...]:
    """Return the options of every engine."""
    return tuple(option for option in options_of(EngineOptions) if option.name in ENGINE_SETTINGS)


def run_options() -> tuple[Option, ...]:
    """Return the settings at the top level: those of the run, and where it is kept."""
    return (*(option for option in options_of(RunConfig) if option.name not in NOT_SETTINGS), *FOLDER_OPTIONS)


def preprocess_options() -> tuple[Option, ...]:
    """Return the options of preprocessing."""
    return options_of(Preprocess)


def list_key(choice: str) -> str:
    """Return the name under which an item of a list has its options: `callbacks.early_stopping.patience`."""
    return choice.rpartition(":")[2].replace(".", "_")


def setting_names() -> Iterator[str]:
    """Yield the full name of every setting of every built-in choice."""
    yield from (option.name for option in run_options())
    yield "preprocess"
    yield from (f"preprocess.{option.name}" for option in preprocess_options())
    for group in GROUPS.values():
        yield group.name
        for choice in group.choices():
            prefix = f"{group.name}.{list_key(choice)}" if group.is_list else group.name
            yield from option_names(group.options(choice), prefix)


def option_names(options: tuple[Option, ...], prefix: str) -> Iterator[str]:
    """Yield the full names of options, those of nested components too."""
    for option in options:
        yield f"{prefix}.{option.name}"
        yield from option_names(nested_options(option), f"{prefix}.{option.name}")
