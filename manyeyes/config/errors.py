"""What went wrong with a setting, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyeyes.config.presets import OPTIONS
from manyeyes.config.schema import Config


def is_config_error(error: BaseException) -> bool:
    return isinstance(error, HydraException | OmegaConfBaseException)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little; PyTorch has several errors for it."""
    return isinstance(error, MemoryError) or bool(re.search("out of memory|can't allocate memory", str(error)))


def format_error(error: BaseException) -> str:
    """One sentence that names the setting, what was found and what to do."""
    if is_out_of_memory(error):
        where = "the GPU" if "CUDA" in str(error) else "this machine"
        return (
            f"{where} has too little memory for this: make algorithm.batch, engine.lanes or engine.workers smaller, "
            "keep images off the GPU by engine.resident=host, or end what else uses the memory"
        )
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read: write name=value, with quotes around a value that has spaces"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, word = error.missing_cfg_file.rpartition("/")
        known = list(OPTIONS.get(group, error.options or ()))
        return f"{group} {word!r} is unknown{_suggestion(word, known)}: choose {', '.join(known)}"
    known = list(setting_names())
    text = "\n".join(str(link) for link in _chain(error))
    if found := re.search(r"Could not override '([^']+)'|Could not find '([^']+)'|full_key: ([^\s[]+)", text):
        name = found[1] or found[2] or found[3]
        if name not in known:
            return _unknown(name)
        if re.search(r"Key '\w+' not in '\w+'", text):
            return f"{name} is no setting of the {name.partition('.')[0]} that was chosen; see them with --cfg job"
        if value := re.search(r"Value '([^']*)'.* (?:could not be converted to|is not a valid) (\w+)", text):
            return f"{name} is {value[1]!r}: it must be {TYPE_NAMES.get(value[2], value[2])}"
    if found := re.search(r"Missing mandatory value: (\S+)", text):
        return f"{found[1]} must be given: add {found[1]}=..."
    if found := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{found[1]} has several values: add --multirun to run with each, or write a list as [value,value]"
    return ": ".join(str(link).partition("\n")[0] for link in _chain(error))


TYPE_NAMES = {"Float": "a number", "Integer": "a whole number", "bool": "true or false"}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__


def check_names(config: DictConfig) -> None:
    """Refuse what `+name=value` added and what `~name` took away: a run has all settings and no others."""
    option = OPTIONS["data"].get(str(config.data.get("name")), OPTIONS["data"]["store"])
    known, found = set(setting_names(data=[option])), set(_names(OmegaConf.to_container(config, resolve=False)))
    for name in sorted(found - known):
        raise ValueError(_unknown(name))
    for name in sorted(known - found):
        raise ValueError(f"{name} is taken away, and every run needs it: leave out ~{name}")


def _names(node: Any, prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")


def _unknown(name: str) -> str:
    return f"{name} is no setting{_suggestion(name, list(setting_names()))}; see them all with manyeyes run --help"


def _suggestion(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def setting_names(node: Any = Config, prefix: str = "", data: Iterable[Any] | None = None) -> Iterator[str]:
    """The full name of every setting, with those of the given options of `data` (or of all)."""
    for one in fields(node):
        yield prefix + one.name
        options = OPTIONS["data"].values() if data is None else data
        for nested in options if one.name == "data" else (one.default_factory,):
            if is_dataclass(nested):
                yield from setting_names(nested, f"{prefix}{one.name}.")
