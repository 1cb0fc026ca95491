"""The help of `manyeyes run`, from the declarations: every group with its choices, every setting with its default."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from typing import Any

from manyeyes.config.groups import (
    GROUPS,
    NO_COMPONENT,
    Group,
    engine_options,
    is_plain,
    list_key,
    nested_options,
    preprocess_options,
    run_options,
)
from manyeyes.core.registry import Option, lookup

HEAD = """usage: manyeyes run [group=choice ...] [setting=value ...] [--multirun] [--cfg job]

Train a model; every run is kept in a folder, with its settings, metrics, checkpoint and model.

  manyeyes run algorithm=fedavgm algorithm.lr=0.03 rounds=200
  manyeyes run algorithm=fedavg server_optimizer=adam server_optimizer.lr=0.1   replace a component of the algorithm
  manyeyes run correction=none                                     take a component of the algorithm away
  manyeyes run server_optimizer=mypackage.mine:MyServer            a component of your own, in any group
  manyeyes run callbacks=[early_stopping] callbacks.early_stopping.patience=5
  manyeyes run --multirun algorithm=fedavg,fedavgm seed=0,1,2      a sweep: every combination
  manyeyes run resume=runs/NAME                                    continue a run
  manyeyes run algorithm=fedvc --cfg job                           show the settings, train nothing
  manyeyes run server_optimizer=adam --help                        show the options of a choice
"""


def run_help(overrides: Sequence[str] = ()) -> str:
    """Return the help; with overrides that choose components, the help of these components."""
    chosen = [line for override in overrides for line in _chosen_lines(override)]
    return "\n".join(
        chosen or [HEAD, "Groups, and the choice without an override:", *_group_lines(), *_setting_lines()]
    )


def _chosen_lines(override: str) -> Iterator[str]:
    """Yield the help of what one override chooses, if it chooses something."""
    name, _, value = override.partition("=")
    group = GROUPS.get(name.lstrip("+"))
    for choice in re.split(r"[\[\],]+", value) if group is not None else ():
        if group is not None and choice:
            lookup_name = choice if ":" in choice else _checked(group, choice)
            yield f"{group.name}={lookup_name}{_summary(group, choice)}"
            yield from _choice_lines(group, choice) or ["  (no options)"]


def _checked(group: Group, choice: str) -> str:
    if choice not in group.choices():
        lookup(group.slot, choice)  # which refuses it, with the nearest name
    return choice


def _summary(group: Group, choice: str) -> str:
    """Return the first line of what a component says of itself."""
    try:
        text = lookup(group.slot, choice).factory.__doc__ or ""
    except ValueError:  # a choice that is not in the registry, such as engine=auto
        return ""
    return f": {text.strip().partition(chr(10))[0]}" if text.strip() else ""


def _group_lines() -> Iterator[str]:
    for group in GROUPS.values():
        default = "[]" if group.is_list else group.default or "as the algorithm has it"
        choices = "|".join(group.choices())
        yield f"  {group.name}={f'[{choices}]' if group.is_list else choices}   ({default})"


def _setting_lines() -> Iterator[str]:
    """Yield every setting: of the run, of preprocessing and the engine, and of the choices of every group."""
    yield from ("", "Settings of the run:", *_lines(run_options(), ""))
    yield from ("", "Preprocessing of images:", *_lines(preprocess_options(), "preprocess."))
    yield from ("", "Every engine:", *_lines(engine_options(), "engine."))
    for group in GROUPS.values():
        if group.name == "engine":
            continue
        choices = [group.default] if group.name == "algorithm" else group.choices()
        for choice in choices:
            if choice and choice != NO_COMPONENT and (lines := list(_choice_lines(group, choice))):
                yield from ("", f"{group.name}={choice}:", *lines)


def _choice_lines(group: Group, choice: str) -> list[str]:
    prefix = f"{group.name}.{list_key(choice)}." if group.is_list else f"{group.name}."
    return list(_lines(group.options(choice), prefix))


def _lines(options: Sequence[Option], prefix: str) -> Iterator[str]:
    """Yield a line for each option, with its default and help."""
    for option in options:
        if nested := nested_options(option):
            yield from _lines(nested, f"{prefix}{option.name}.")
        elif is_plain(option):
            yield f"  {prefix + option.name + '=' + _shown(option.default):<46} {option.help}".rstrip()


def _shown(default: Any) -> str:
    """Return a default as a person would type it."""
    if default is MISSING:
        return "..."
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple | list):
        return f"[{','.join(map(str, default))}]"
    return "null" if default is None else str(default) or "''"
