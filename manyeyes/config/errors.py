"""What is wrong with a setting, in one sentence."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyeyes.config.groups import GROUPS, is_plain, nested_options, preprocess_options, run_options, setting_names
from manyeyes.core.registry import Option, libraries, suggestion

TYPE_NAMES = {"Float": "a number", "Integer": "a whole number", "bool": "true or false"}
REFERENCE = re.compile(r"\$\{(?![\w.]+:)")  # to another setting
MEMORY_ADVICE = (
    "make algorithm.batch_size, engine.num_streams or engine.workers smaller, keep images off the GPU with "
    "engine.image_storage=cpu, or stop other programs that use the memory"
)


def is_config_error(error: BaseException) -> bool:
    """Return whether an error is one of Hydra or OmegaConf, about a setting."""
    return isinstance(error, HydraException | OmegaConfBaseException)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was too small; PyTorch has several errors for it."""
    return isinstance(error, MemoryError) or bool(re.search("out of memory|can't allocate memory", str(error)))


def format_error(error: BaseException, overrides: Iterable[str] = ()) -> str:
    """Return one sentence that names the setting, the value given and what to do; overrides name a user's components."""
    if is_out_of_memory(error):
        device = "The GPU" if "CUDA" in str(error) else "This machine"
        return f"{device} has too little memory for this run: {MEMORY_ADVICE}."
    if isinstance(error, OverrideParseException):
        return f"Cannot read {error.override!r}: write name=value, with quotes around a value that has spaces."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _format_missing_choice(error)
    messages, cause = [str(error)], error.__cause__
    while cause is not None:
        messages, cause = [*messages, str(cause)], cause.__cause__
    sentence = _format_setting_error("\n".join(messages), [*setting_names(overrides)])
    return sentence or ": ".join(message.partition("\n")[0] for message in messages)


def _format_missing_choice(error: MissingConfigException) -> str:
    """Return the sentence for a choice that a group does not have."""
    name, _, choice = str(error.missing_cfg_file).rpartition("/")
    group = GROUPS.get(name)
    if group is None and error.options is None:
        return unknown_setting(name)
    known = list(group.choices() if group else error.options or ())
    own = "".join(f", {prefix}:NAME" for prefix in libraries(group.slot)) if group else ""
    own += ", or package.module:Name" if group else ""
    if name == "data" and Path("data", choice, "meta.json").is_file():
        own += f"; data/{choice} is a prepared dataset: data=store data.path=data/{choice}"
    return f"Unknown {name} {choice!r}{suggestion(choice, known)}: choose {', '.join(known)}{own}."


def _format_setting_error(text: str, known: list[str]) -> str:
    """Return the sentence for what Hydra and OmegaConf say of one setting, or an empty string."""
    if match := re.search(r"Could not override '([^']+)'|Could not find '([^']+)'|full_key: ([^\s[]+)", text):
        name = match[1] or match[2] or match[3]
        if "is not in struct" in text or match[2]:
            return unknown_setting(name, known)
        if value := re.search(r"Value '([^']*)'.* (?:could not be converted to|is not a valid) (\w+)", text):
            return f"{name} is {value[1]!r}: it must be {TYPE_NAMES.get(value[2], value[2])}."
        if "resolving interpolation" in text:
            return f"{name} refers to what does not exist ({text.partition(chr(10))[0]}): give the value itself."
        if "is not Optional" in text:
            return f"{name}=null is not possible: give a value."
    if match := re.search(r"Missing mandatory value: (\S+)(?:\s+full_key: (\S+))?", text):
        return f"{match[2] or match[1]} must be given: add {match[2] or match[1]}=..."
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{match[1]} has several values: add --multirun to run with each, or write a list as [value,value]."
    return ""


def unknown_setting(name: str, known: Iterable[str] | None = None) -> str:
    """Return the sentence for a setting that does not exist, or that the chosen component does not have."""
    known = dict.fromkeys(setting_names() if known is None else known)
    group = GROUPS.get(name.partition(".")[0])
    if name not in known or group is None:
        return f"Unknown setting `{name}`{suggestion(name, known)}. Run `manyeyes run --help` for the list."
    option = name.split(".")[1]
    if group.is_list:
        return f"{name} is an option of {option}, which is not in {group.name}: add {group.name}=[{option}]."
    choices = [c for c in group.choices() if option in (declared.name for declared in group.options(c))]
    fix = " or ".join(f"{group.name}={choice}" for choice in choices)
    return f"{name} is not an option of the chosen {group.name}: choose {fix}."


def check_settings(config: DictConfig) -> None:
    """Refuse what `+name=value` added, what `~name` took away, and a value in place of a list or of options."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    values.pop("hydra", None)
    _check_references("", values)
    _check_names("", values, {option.name for option in run_options()} | {"preprocess", *GROUPS})
    _check_options("preprocess", values["preprocess"], preprocess_options())
    for name in GROUPS:
        _check_group(name, values[name])


def _check_references(prefix: str, values: Mapping[Any, Any]) -> None:
    """Refuse a value that refers to another setting; resolvers such as `${oc.env:HOME}` are possible."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_references(f"{prefix}{name}.", value)
        elif "${" in (text := str(value)) and REFERENCE.search(text):
            raise ValueError(f"{prefix}{name} is {text!r}, which refers to another setting: give the value itself.")


def _check_group(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value} cannot be read: write {name}=NAME.")
    group = GROUPS[name]
    items = {f"{name}.{key}": item for key, item in value.items()} if group.is_list else {name: value}
    for prefix, item in items.items():
        if not isinstance(item, Mapping) or not item:
            raise ValueError(f"{prefix}={item} cannot be read: write {name}={'[NAME]' if group.is_list else 'NAME'}.")
        if "name" not in item:
            raise ValueError(unknown_setting(f"{prefix}.{next(iter(item))}"))
        options = {option: value for option, value in item.items() if option != "name"}
        _check_options(prefix, options, group.options(str(item["name"])))


def _check_options(prefix: str, values: Any, options: Sequence[Option]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{prefix}={values} cannot be read: set its options, such as {prefix}.{options[0].name}=...")
    plain = {option.name: option for option in options if is_plain(option)}
    _check_names(f"{prefix}.", values, plain)
    for name, option in plain.items():
        if nested := nested_options(option):
            _check_options(f"{prefix}.{name}", values[name], nested)
        elif isinstance(option.default, tuple | list) and not isinstance(values[name], list):
            raise ValueError(f"{prefix}.{name}={values[name]} cannot be read: write a list as [value,value].")


def _check_names(prefix: str, values: Iterable[str], expected: Iterable[str]) -> None:
    for name in sorted(set(values) - set(expected)):
        raise ValueError(unknown_setting(prefix + name))
    for name in sorted(set(expected) - set(values)):
        raise ValueError(f"~{prefix}{name} removes a setting that every run needs: leave it out.")
