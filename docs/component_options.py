"""An extension of Griffe, for mkdocstrings: signatures and tables of options of components, from their declarations.

A component is a dataclass through its decorator `component`, which reading its source alone does not show.
"""

from dataclasses import MISSING
from typing import Any

import griffe

from manyeyes.config.groups import GROUPS
from manyeyes.core.algorithm import SLOTS
from manyeyes.core.registry import lookup, names, options_of

COMPONENT = ("component(", "settings_class(", "dataclass")


class ComponentOptions(griffe.Extension):
    """Adds `__init__` with its parameters, and a section of the docstring that describes them."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if not any(str(decorator.value).startswith(COMPONENT) for decorator in cls.decorators) or cls.docstring is None:
            return
        kind = getattr(__import__(cls.module.path, fromlist=["_"]), cls.name)
        if options := options_of(kind):
            cls.set_member("__init__", _constructor(kind, cls))
            rows = "".join(f"{option.name}\n    {option.help}\n" for option in options)
            cls.docstring.value += f"\n\n{_chosen_by(kind)}\n\nParameters\n----------\n{rows}"
        elif chosen := _chosen_by(kind):
            cls.docstring.value += f"\n\n{chosen}"


def _constructor(kind: type, parent: griffe.Class) -> griffe.Function:
    """Return `__init__` with the options, so that the signature and the table show types and defaults."""
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for option in options_of(kind):
        is_made = isinstance(option.default, type)  # for every instance, such as a schedule
        default = None if option.default is MISSING else _text(option.default) + "()" * is_made
        parameters.append(
            griffe.Parameter(
                option.name,
                annotation=_text(option.type),
                kind=griffe.ParameterKind.positional_or_keyword,
                default=default,
            )
        )
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=parent)


def _text(value: Any) -> str:
    """Return a type or a default as it is written in Python."""
    return value.__name__ if isinstance(value, type) else repr(value).replace("typing.", "")


def _chosen_by(kind: type) -> str:
    """Return the settings that choose a component, with what each of them fixes."""
    chosen = []
    for group in GROUPS.values():
        for name in names(group.slot) if group.slot in SLOTS or group.is_list else ():
            if (registration := lookup(group.slot, name)).factory is kind:
                preset = ", ".join(f"{key}={value}" for key, value in registration.preset.items())
                setting = f"{group.name}=[{name}]" if group.is_list else f"{group.name}={name}"
                chosen.append(f"`{setting}`" + (f" ({preset})" if preset else ""))
    return f"Chosen by {', '.join(chosen)}." if chosen else ""
