"""The registry: components by slot and name, and how a component is described as plain data and built from it.

A component is a class (usually a frozen dataclass) or a function that returns one. Built-in components register
themselves with `@register(slot, name)`; a user's own are found by import path, `"package.module:Name"`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def option(default: Any = MISSING, help: str = "") -> Any:
    """Return a dataclass field with one line of help; mutable defaults are copied for every instance."""
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Registration:
    """A component that can be chosen by name: what makes it, and the options that the name fixes."""

    slot: str
    name: str
    factory: Callable[..., Any]
    preset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """One option of a component, as declared by it."""

    name: str
    type: Any
    default: Any = MISSING
    help: str = ""


_REGISTRY: dict[str, dict[str, Registration]] = {}
OPTIONS_ATTRIBUTE = "__manyeyes_options__"  # of a factory whose signature does not show its options


def register(slot: str, name: str, **preset: Any) -> Callable[[T], T]:
    """Register a class or function under a name of a slot; `preset` are options that the name sets differently."""

    def decorate(factory: T) -> T:
        assert callable(factory), f"{slot}={name} is not callable"
        _REGISTRY.setdefault(slot, {})[name] = Registration(slot, name, factory, preset)
        return factory

    return decorate


def names(slot: str) -> tuple[str, ...]:
    """Return the registered names of a slot, in the order of registration."""
    return tuple(_REGISTRY.get(slot, {}))


def lookup(slot: str, name: str) -> Registration:
    """Find a component by its registered name or its import path."""
    if ":" in name:
        return Registration(slot, name, import_object(name, slot))
    known = _REGISTRY.get(slot, {})
    if name not in known:
        raise ValueError(
            f"Unknown {slot} {name!r}{suggestion(name, known)}: choose {', '.join(known)}, or package.module:Name"
        )
    return known[name]


def import_object(path: str, subject: str = "component") -> Any:
    """Import `package.module:Name`; the working directory counts as a place of modules, as with `python -m`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"{subject}={path!r} is not an import path: write package.module:Name")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"{subject}={path}: cannot import {module_name!r} ({error}); is its folder on PYTHONPATH?"
        ) from None
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{subject}={path}: {module_name} has no {name!r}{suggestion(name, vars(module))}")
        found = getattr(found, part)
    return found


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """Return the options of a component: its dataclass fields, or the parameters that it is called with."""
    if hasattr(factory, OPTIONS_ATTRIBUTE):
        return tuple(getattr(factory, OPTIONS_ATTRIBUTE))
    hints = _hints(factory)
    if is_dataclass(factory):
        return tuple(
            Option(
                one.name,
                hints.get(one.name, Any),
                one.default_factory() if one.default_factory is not MISSING else one.default,
                one.metadata.get("help", ""),
            )
            for one in fields(factory)
            if one.init and one.repr
        )
    return tuple(
        _parameter_option(p, hints.get(p.name, Any))
        for p in inspect.signature(factory).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )


def build(slot: str, config: Mapping[str, Any]) -> Any:
    """Build the component that a description names, `{"name": ..., **options}`."""
    return instantiate(lookup(slot, config["name"]), {key: value for key, value in config.items() if key != "name"})


def instantiate(registration: Registration, options: Mapping[str, Any]) -> Any:
    """Make a component from its options; an unknown or a missing option is refused."""
    slot = registration.slot
    given = {**registration.preset, **options}
    known = {one.name: one for one in options_of(registration.factory)}
    for key in given:
        if key not in known:
            raise ValueError(
                f"{slot}.{key} is not an option of {slot}={registration.name}{suggestion(key, known)}: "
                f"it has {', '.join(known) or 'none'}"
            )
    missing = [one.name for one in known.values() if one.default is MISSING and one.name not in given]
    if missing:
        raise ValueError(f"{slot}={registration.name} needs {slot}.{missing[0]}: set it")
    return registration.factory(**{key: _as_declared(known[key], value) for key, value in given.items()})


def describe(slot: str, component: Any) -> dict[str, Any]:
    """Return the description that `build` makes the component from: its name or import path, and its options."""
    kind = type(component) if not isinstance(component, type) else component
    options = {
        one.name: _as_data(getattr(component, one.name)) for one in options_of(kind) if hasattr(component, one.name)
    }
    return {"name": _name_of(slot, kind, options), **options}


def import_path(component: Any) -> str:
    """Return `package.module:Name` of a component, its class or its factory."""
    kind = component if isinstance(component, type) or inspect.isfunction(component) else type(component)
    return f"{kind.__module__}:{kind.__qualname__}"


def source_hash(component: Any) -> str | None:
    """Return the SHA-256 of the source file that defines a component; None where it has no file."""
    kind = component if isinstance(component, type) or inspect.isfunction(component) else type(component)
    try:
        path = inspect.getsourcefile(kind)
        return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (TypeError, OSError):
        return None


def suggestion(name: str, known: Any) -> str:
    """Return " (did you mean 'x'?)" for the nearest known name, or nothing."""
    close = get_close_matches(name, [str(one) for one in known], 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _name_of(slot: str, kind: type, options: Mapping[str, Any]) -> str:
    """Return the registered name whose preset the options agree with, else the import path."""
    matches = [one for one in _REGISTRY.get(slot, {}).values() if one.factory is kind]
    for one in sorted(matches, key=lambda one: -len(one.preset)):
        if all(options.get(key) == value for key, value in one.preset.items()):
            return one.name
    return matches[0].name if matches else import_path(kind)


def _as_data(value: Any) -> Any:
    """Return a value as YAML can hold it: nested components as mappings, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _as_data(getattr(value, one.name)) for one in fields(value) if one.init and one.repr}
    if isinstance(value, tuple | list):
        return [_as_data(one) for one in value]
    return value


def _as_declared(one: Option, value: Any) -> Any:
    """Return a plain value as the option declares it: a mapping as a nested dataclass, a list as a tuple."""
    if isinstance(value, Mapping):
        kind = type(one.default) if is_dataclass(one.default) else one.type
        return kind(**value) if is_dataclass(kind) else dict(value)
    return tuple(value) if isinstance(value, list) else value


def _parameter_option(parameter: inspect.Parameter, hint: Any) -> Option:
    """Return the option of a parameter; the help text of one is the string in `Annotated[type, "help"]`."""
    default = MISSING if parameter.default is parameter.empty else parameter.default
    texts = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, str)]
    return Option(parameter.name, getattr(hint, "__origin__", hint) if texts else hint, default, "".join(texts[:1]))


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    subject = factory.__init__ if isinstance(factory, type) and not is_dataclass(factory) else factory  # type: ignore[misc]
    try:
        return get_type_hints(subject, include_extras=True)
    except (NameError, TypeError):  # names that only exist for a type checker
        return {}
