"""How objects are shown in a notebook, and in one line elsewhere."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from html import escape
from typing import Any


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a small table with a title, for `_repr_html_`."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{cells}</table>"


def short_repr(component: Any) -> str:
    """Return a dataclass as it would be typed, without the options that have their defaults; else its `repr`."""
    if not is_dataclass(component) or isinstance(component, type):
        return repr(component)
    options = []
    for declared in fields(component):
        default = declared.default_factory() if declared.default_factory is not MISSING else declared.default
        value = getattr(component, declared.name)
        if declared.init and declared.repr and (default is MISSING or value != default):
            options.append(f"{declared.name}={short_repr(value)}")
    return f"{type(component).__name__}({', '.join(options)})"
