"""The registry: components by slot and name, the options that they declare, and components as plain data.

A component is a class (usually a frozen dataclass) or a function that returns one. Built-in components register
themselves with `@register(slot, name)`; a user's own are found by import path, `"package.module:Name"`.
"""

import hashlib
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, partial, partialmethod, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np

from manyeyes.core.synonyms import find_synonym

T = TypeVar("T")
C = TypeVar("C")
OptionSource = Callable[..., Any] | tuple[Callable[..., Any], str]  # what declares an option, and its name there
UNKNOWN = "???"  # in a description: an option that a component does not store; OmegaConf requires a value there
OPTIONS_ATTRIBUTE = "__manyeyes_options__"  # of a factory whose signature does not show its options: a function of none
DESCRIPTION_ATTRIBUTE = "__manyeyes_description__"  # of a component that is not a dataclass: what it was built from
SETTINGS = {"dataset": "data", "callback": "callbacks", "metric": "metrics", "tracker": "trackers"}  # of other slots
MAX_QUOTED_CHARACTERS, MAX_DIGITS = 200, 50  # of a value in a message
MAX_INTEGER = 2**63 - 1  # what arrays hold
MAX_FLOAT = 3e38  # what float32 holds
SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    str: ((str,), "text"),
}


@dataclass(frozen=True)
class Bounds:
    """The values that an option accepts, beyond those that its type excludes."""

    minimum: float = -math.inf
    above: float = -math.inf
    maximum: float = math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, Real):
            return not self.choices or value in self.choices
        number: Any = value  # not converted: a large integer is not a float
        is_within = self.minimum <= number <= self.maximum and self.above < number < self.below
        return is_within and abs(number) <= (MAX_INTEGER if isinstance(value, Integral) else MAX_FLOAT)

    def describe(self) -> str:
        """Return the bounds in words, such as `of at least 0 and below 1`; empty without bounds."""
        if self.choices:
            return " or ".join(filter(None, (", ".join(self.choices[:-1]), self.choices[-1])))
        limits = {"of at least": self.minimum, "above": self.above, "at most": self.maximum, "below": self.below}
        return " and ".join(f"{relation} {limit:g}" for relation, limit in limits.items() if math.isfinite(limit))


NO_BOUNDS = Bounds()


@dataclass(frozen=True)
class Option:
    """One option of a component, as declared by it."""

    name: str
    type: Any
    default: Any
    help: str = ""
    bounds: Bounds = NO_BOUNDS


@dataclass(frozen=True)
class Registration:
    """A component that can be chosen by name: what makes it, and the options that the name fixes."""

    slot: str
    name: str
    factory: Callable[..., Any]
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The setting that chooses the component, and under which its options are: `aggregator`, `metrics.top_k`."""
        setting = SETTINGS.get(self.slot, self.slot)
        return f"{setting}.{self.name.rpartition(':')[2]}" if setting == f"{self.slot}s" else setting

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of the component, with the defaults that its name sets."""
        declared = options_of(self.factory)
        return tuple(replace(option, default=self.preset.get(option.name, option.default)) for option in declared)


_REGISTRY: dict[str, dict[str, Registration]] = {}
_LIBRARIES: dict[str, dict[str, Callable[..., Any]]] = {}


def option(default: Any = MISSING, help: str = "", **bounds: Any) -> Any:
    """Declare an option: a dataclass field with one line of help, and the `Bounds` that its values must have.

    Mutable defaults are copied for every instance; a class, such as a schedule's, is called for every instance.
    """
    metadata = {"help": help, "bounds": Bounds(**bounds)}
    if isinstance(default, list | dict | type):
        factory = default if isinstance(default, type) else default.copy
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(component: Any, setting: str | None = None) -> None:
    """Raise ValueError unless every option of a dataclass has its declared type and bounds: its `__post_init__`.

    The message puts `setting` before an option's name; by default the one where the class is registered.
    """
    kind = type(component)
    if setting is None:
        registrations = (known for slot in _REGISTRY.values() for known in slot.values())
        setting = next((known.setting for known in registrations if known.factory is kind), kind.__name__)
    for declared in options_of(kind):
        name = f"{setting}.{declared.name}" if setting else declared.name
        check_value(name, getattr(component, declared.name), declared.type, declared.bounds)


def check_value(setting: str, value: Any, kind: Any, bounds: Bounds = NO_BOUNDS) -> None:
    """Raise ValueError unless a value has the type and the bounds of its setting; a number must be finite."""
    alternatives = [alternative for alternative in get_args(kind) if alternative is not NoneType]
    if NoneType in get_args(kind) and len(alternatives) == 1:
        kind = Any if value is None else alternatives[0]
    if get_origin(kind) is tuple:
        return _check_items(setting, value, get_args(kind), bounds)
    if kind not in SCALARS:
        return
    types, type_name = SCALARS[kind]
    is_of_kind = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if is_of_kind and value in bounds:
        return
    fix = bounds.describe() if bounds.choices else f"{type_name} {bounds.describe()}".rstrip()
    if isinstance(value, Integral) and abs(int(value)) > MAX_INTEGER:
        fix = f"{fix}, with at most 18 digits"
    raise ValueError(f"{setting} is {format_value(value)}: set it to {fix}")


def _check_items(setting: str, value: Any, kinds: tuple[Any, ...], bounds: Bounds) -> None:
    """Raise ValueError unless a value is a list of the declared items: of one type, or as many as there are types."""
    count = None if kinds[1:] == (...,) else len(kinds)
    if not isinstance(value, tuple | list) or len(value) != (len(value) if count is None else count):
        fix = "a list" if count is None else f"a list of {count} values"
        raise ValueError(f"{setting} is {format_value(value)}: set it to {fix}, written as [value,value]")
    for number, item in enumerate(value):
        check_value(f"{setting}[{number}]", item, kinds[0 if count is None else number], bounds)


def format_value(value: Any) -> str:
    """Return a value as a message quotes it: text in quotes, and not more of it than a line has room for."""
    if isinstance(value, Integral) and abs(int(value)) >= 10**MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}..."


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """Return the options of a component: its dataclass fields, or the parameters that it is called with."""
    if hasattr(factory, OPTIONS_ATTRIBUTE):
        return tuple(getattr(factory, OPTIONS_ATTRIBUTE)())
    hints = _hints(factory)
    if is_dataclass(factory):
        return tuple(
            Option(declared.name, hints.get(declared.name, Any), _field_default(declared), **declared.metadata)
            for declared in fields(factory)
            if declared.init and declared.repr
        )
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # such as a class with a metaclass that Python cannot look through
        return ()
    return tuple(
        _parameter_option(parameter, hints.get(parameter.name, Any))
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )


def inherited_options(
    make: Callable[..., Any], passed_on: Iterable[Callable[..., Any]], sources: Mapping[str, OptionSource]
) -> tuple[Option, ...]:
    """Return the options of a function: those of its parameters, then those that it passes on to other factories."""
    inherited = {option.name: option for factory in passed_on for option in options_of(factory)}
    hints, own = get_type_hints(make), {}
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            declared = (
                _declared_in(sources[name], name) if name in sources else inherited.get(name, Option(name, Any, None))
            )
            own[name] = replace(declared, name=name, type=hints[name], default=parameter.default)
    return (*own.values(), *(option for name, option in inherited.items() if name not in own))


def _declared_in(source: OptionSource, name: str) -> Option:
    factory, declared_name = source if isinstance(source, tuple) else (source, name)
    return next(option for option in options_of(factory) if option.name == declared_name)


def check_keywords(name: str, keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a keyword that a function or class does not have, with the nearest one that it has."""
    known = [*known]
    for keyword in keywords:
        if keyword not in known:
            hint = suggestion(keyword, known)
            raise TypeError(f"{name}() has no option {keyword!r}{hint}: it has {', '.join(known) or 'none'}")


def show_options(function: Callable[..., Any], signature_of: Callable[..., Any], options: Iterable[Option]) -> None:
    """Let `inspect.signature` of a function show the options behind its `**keywords`."""
    signature, kind = inspect.signature(signature_of), inspect.Parameter.KEYWORD_ONLY
    parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
    ]
    names = {parameter.name for parameter in parameters}
    parameters += [
        inspect.Parameter(option.name, kind, default=option.default, annotation=option.type)
        for option in options
        if option.name not in names
    ]
    vars(function)["__signature__"] = signature.replace(parameters=parameters)


def checks_keywords(kind: type[T]) -> type[T]:
    """Make a class name the nearest keyword if it is created with an unknown one."""
    init, known = kind.__init__, [*inspect.signature(kind).parameters]

    @wraps(init)
    def checked(self: T, *args: Any, **keywords: Any) -> None:
        check_keywords(kind.__name__, keywords, known)
        init(self, *args, **keywords)

    kind.__init__ = checked  # type: ignore[assignment]
    return kind


def register(slot: str, name: str, **preset: Any) -> Callable[[T], T]:
    """Register a class or function under a name of a slot; `preset` are options that the name sets differently."""

    def decorate(factory: T) -> T:
        assert callable(factory), f"{slot}={name} is not callable"
        _REGISTRY.setdefault(slot, {})[name] = Registration(slot, name, factory, preset)
        return factory

    return decorate


def register_library(slot: str, prefix: str) -> Callable[[T], T]:
    """Register what makes the components of another library: `model=timm:resnet18` calls timm's with "resnet18" first."""

    def decorate(factory: T) -> T:
        assert callable(factory), f"{slot}={prefix}:NAME is not callable"
        _LIBRARIES.setdefault(slot, {})[prefix] = factory
        return factory

    return decorate


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def component(slot: str, name: str) -> Callable[[type[C]], type[C]]:
    """Make a class a frozen dataclass that checks its options, and register it."""

    def decorate(kind: type[C]) -> type[C]:
        if "__post_init__" not in vars(kind):
            kind.__post_init__ = check_options  # type: ignore[attr-defined]
        made = checks_keywords(dataclass(frozen=True)(kind))
        _REGISTRY.setdefault(slot, {})[name] = Registration(slot, name, made)
        return made

    return decorate


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_class(prefix: str) -> Callable[[type[C]], type[C]]:
    """Make a class a frozen dataclass of settings with a prefix, whose values are checked."""

    def decorate(kind: type[C]) -> type[C]:
        kind.__post_init__ = partialmethod(check_options, prefix)  # type: ignore[attr-defined]
        return dataclass(frozen=True)(kind)

    return decorate


def names(slot: str) -> tuple[str, ...]:
    """Return the registered names of a slot, in the order of registration."""
    return tuple(_REGISTRY.get(slot, {}))


def libraries(slot: str) -> tuple[str, ...]:
    """Return the prefixes of the libraries of a slot, such as `timm` of models."""
    return tuple(_LIBRARIES.get(slot, {}))


def is_import_path(name: str) -> bool:
    """Return whether a component's name is `package.module:Name`, and not a name of the package or of a library."""
    return ":" in name and not any(name.partition(":")[0] in known for known in _LIBRARIES.values())


def catalog(slot: str) -> dict[str, tuple[Option, ...]]:
    """Return the options of every registered component of a slot, by name."""
    return {name: lookup(slot, name).options for name in names(slot)}


def lookup(slot: str, name: str) -> Registration:
    """Find a component by its registered name, its name in a library, or its import path."""
    setting = SETTINGS.get(slot, slot)
    prefix, separator, library_name = name.partition(":")
    if separator and prefix in _LIBRARIES.get(slot, {}):
        return Registration(slot, name, partial(_LIBRARIES[slot][prefix], library_name))
    if separator:
        return Registration(slot, name, import_object(name, setting))
    known = _REGISTRY.get(slot, {})
    if name not in known:
        others = (*(f"{prefix}:NAME" for prefix in libraries(slot)), "package.module:Name")
        raise ValueError(
            f"Unknown {setting} {name!r}{suggestion(name, known)}: choose {', '.join(known)}, or {', '.join(others)}"
        )
    return known[name]


def import_object(path: str, subject: str = "component") -> Any:
    """Import `package.module:Name`; modules are also searched in the working directory, as with `python -m`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"{subject}={path!r} is not an import path: write package.module:Name")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        imported = module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may do anything
        is_missing = isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "?")
        fix = "add its folder to PYTHONPATH" if is_missing else "correct the module"
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{subject}={path}: cannot import {module_name} ({reason}): {fix}") from error
    for attribute in name.split("."):
        if not hasattr(imported, attribute):
            raise ValueError(f"{subject}={path}: {module_name} has no {name!r}{suggestion(name, vars(module))}")
        imported = getattr(imported, attribute)
    if not callable(imported):
        raise ValueError(f"{subject}={path} is of type {type(imported).__name__}: name a class or a function")
    return imported


def build(slot: str, config: Mapping[str, Any]) -> Any:
    """Build the component that a description names, `{"name": ..., **options}`."""
    name = config.get("name") if isinstance(config, Mapping) else None
    if not isinstance(name, str) or not all(isinstance(key, str) for key in config):
        setting = SETTINGS.get(slot, slot)
        raise ValueError(f"{setting} is {format_value(config)}: choose {setting}=NAME, and its options by name")
    return instantiate(lookup(slot, name), {key: value for key, value in config.items() if key != "name"})


def instantiate(registration: Registration, options: Mapping[str, Any]) -> Any:
    """Make a component from its options; an unknown or a missing option is refused."""
    label = f"{SETTINGS.get(registration.slot, registration.slot)}={registration.name}"
    component = _call(registration.factory, {**registration.preset, **options}, registration.setting, label)
    is_plain_class = ":" in registration.name and not is_dataclass(component)
    if is_plain_class and isinstance(getattr(component, "__dict__", None), dict):
        defaults = {declared.name: declared.default for declared in options_of(registration.factory)}
        vars(component)[DESCRIPTION_ATTRIBUTE] = {"name": registration.name, **defaults, **options}
    return component


def describe(slot: str, component: Any) -> dict[str, Any]:
    """Return the description that `build` makes the component from: its name or import path, and its options.

    A plain class that was not built from a description must keep each option in an attribute of the same name (or
    with an underscore before it): the value of another option is unknown, and is written as `???`.
    """
    if DESCRIPTION_ATTRIBUTE in getattr(component, "__dict__", {}):
        return dict(getattr(component, DESCRIPTION_ATTRIBUTE))
    if isinstance(component, type) or inspect.isfunction(component):
        return {"name": _registered_name(slot, component, {})}
    names = [declared.name for declared in options_of(type(component))]
    values = [getattr(component, name, getattr(component, f"_{name}", UNKNOWN)) for name in names]
    options = {name: _as_data(value) for name, value in zip(names, values, strict=True)}
    return {"name": _registered_name(slot, type(component), options), **options}


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


def source_hashes(components: Iterable[Any], description: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of the source file of each component that does not come with manyeyes, by import path.

    They are those given, and those that a description of settings names.
    """
    paths = {import_path(component): component for component in components if component is not None}
    for setting, value in description.items():
        items = value if isinstance(value, list) else [value]
        names = {str(item.get("name")) for item in items if isinstance(item, Mapping)}
        paths |= {name: import_object(name, setting) for name in names - paths.keys() if is_import_path(name)}
    own = {path: part for path, part in sorted(paths.items()) if not path.startswith(("manyeyes.", "torch."))}
    return {path: digest for path, part in own.items() if (digest := source_hash(part)) is not None}


def suggestion(name: str, known: Iterable[Any]) -> str:
    """Return " (did you mean 'x'?)" for the known name that means the same or is the nearest, or an empty string."""
    names, option = [*map(str, known)], name.rpartition(".")[2]
    same = [known_name for known_name in names if known_name.rpartition(".")[2] == option and known_name != option]
    nearest = find_synonym(name, names) or next(iter(same or get_close_matches(name, names, 1)), None)
    return f" (did you mean {nearest!r}?)" if nearest else ""


def _call(factory: Callable[..., Any], options: Mapping[str, Any], setting: str, label: str) -> Any:
    """Call a factory with options as plain data, checked against what it declares."""
    known = {declared.name: declared for declared in options_of(factory)}
    for name in options:
        if name not in known:
            options_text = ", ".join(known) or "none"
            raise ValueError(
                f"{setting}.{name} is not an option of {label}{suggestion(name, known)}: it has {options_text}"
            )
    for declared in known.values():
        value = options.get(declared.name, declared.default)
        if value is MISSING or (isinstance(value, str) and value == UNKNOWN):
            raise ValueError(f"{label} needs {setting}.{declared.name}: set it")
    return factory(**{name: _as_declared(known[name], value, f"{setting}.{name}") for name, value in options.items()})


def _as_declared(declared: Option, value: Any, setting: str) -> Any:
    """Return a plain value as its option declares it: a mapping as a nested component, a list as a tuple."""
    default = declared.default  # of a nested component: one or, where every instance has a new one, its class
    nested = default if isinstance(default, type) else type(default) if is_dataclass(default) else declared.type
    if is_dataclass(nested) and not is_dataclass(value):
        if not isinstance(value, Mapping):
            raise ValueError(f"{setting} is {format_value(value)}: set its options, such as {setting}.NAME=VALUE")
        return _call(nested, value, setting, setting)
    check_value(setting, value, declared.type, declared.bounds)
    return tuple(value) if isinstance(value, list) else value


def _registered_name(slot: str, factory: Any, options: Mapping[str, Any]) -> str:
    """Return the registered name whose preset the options agree with, else the import path."""
    matches = [known for known in _REGISTRY.get(slot, {}).values() if known.factory is factory]
    for known in sorted(matches, key=lambda known: -len(known.preset)):
        if all(options.get(key) == value for key, value in known.preset.items()):
            return known.name
    return matches[0].name if matches else import_path(factory)


def _as_data(value: Any) -> Any:
    """Return a value as YAML can hold it: nested components as mappings, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _as_data(getattr(value, f.name)) for f in fields(value) if f.init and f.repr}
    if isinstance(value, tuple | list):
        return [_as_data(item) for item in value]
    return value


def _field_default(declared: Field[Any]) -> Any:
    """Return the default of a field; of a nested component its class, which has the defaults."""
    factory = declared.default_factory
    if factory is MISSING:
        return declared.default
    return factory if is_dataclass(factory) else factory()


def _parameter_option(parameter: inspect.Parameter, hint: Any) -> Option:
    """Return the option of a parameter; the help text of `Annotated[type, "help"]` is its string."""
    default = MISSING if parameter.default is parameter.empty else parameter.default
    texts = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
    return Option(parameter.name, getattr(hint, "__origin__", hint) if texts else hint, default, "".join(texts[:1]))


@cache
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(factory, partial):
        return _hints(factory.func)
    subject = factory.__init__ if isinstance(factory, type) and not is_dataclass(factory) else factory  # type: ignore[misc]
    try:
        return get_type_hints(subject, include_extras=True)
    except (NameError, TypeError):  # names that only exist for a type checker
        return {}
