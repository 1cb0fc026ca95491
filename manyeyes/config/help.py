"""The help of `manyeyes run`, from the declarations: every group with its choices, every setting with its default."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING
from typing import Any

from manyeyes.config.groups import GROUPS, Group, is_plain, nested_options, preprocess_options, run_options
from manyeyes.core.registry import Option, libraries, lookup, names

HEAD = """usage: manyeyes run [group=choice ...] [setting=value ...] [--multirun] [--cfg job]

Train a model; every run is kept in a folder, with its settings, metrics, checkpoint and model.

  manyeyes run algorithm=fedavgm algorithm.lr=0.03 rounds=200
  manyeyes run algorithm=fedavg server_optimizer=adam server_optimizer.lr=0.1   replace a component of the algorithm
  manyeyes run correction=none                                     remove a component of the algorithm
  manyeyes run server_optimizer=mypackage.mine:MyServer            a component of your own, in any group
  manyeyes run callbacks=[early_stopping] callbacks.early_stopping.patience=5
  manyeyes run --multirun algorithm=fedavg,fedavgm seed=0,1,2      a sweep: every combination
  manyeyes run resume=runs/NAME                                    continue a run
  manyeyes run algorithm=fedvc --cfg job                           show the settings, train nothing
  manyeyes run server_optimizer=adam --help                        show the options of a choice
"""

Row = tuple[str, str]  # a setting with its default, as typed, and its help


def run_help(overrides: Sequence[str] = ()) -> str:
    """Return the help; with overrides that choose components, the help of these components."""
    chosen = [line for override in overrides for line in _chosen_lines(override)]
    return "\n".join(chosen or [HEAD, *_group_lines(), *_setting_lines()])


def _chosen_lines(override: str) -> Iterator[str]:
    """Yield the help of what one override chooses, if it chooses something."""
    name, _, value = override.partition("=")
    if (group := GROUPS.get(name.lstrip("+"))) is None:
        return
    for choice in filter(None, re.split(r"[\[\],]+", value)):
        text = describe_choice(group, choice)  # refuses other names
        yield f"{group.name}={choice}{': ' if text else ''}{text}"
        yield from map(_format_row, choice_rows(group, choice)) if choice_rows(group, choice) else ["  (no options)"]


def describe_choice(group: Group, choice: str) -> str:
    """Return the first line of the docstring of a component, if the choice is one."""
    is_component = choice not in group.choices() or choice in names(group.slot)  # unlike engine=auto
    text = (lookup(group.slot, choice).factory.__doc__ or "").strip() if is_component else ""
    return text.partition("\n")[0]


def describe_default(group: Group) -> str:
    """Return what a group chooses by default, and which libraries it can choose from."""
    others = ", ".join(f"{prefix}:NAME" for prefix in libraries(group.slot))
    return (group.default or group.default_help) + (f"; also {others}" if others else "")


def _group_lines() -> Iterator[str]:
    yield "Groups, with their choices (and the default):"
    for group in GROUPS.values():
        choices = "|".join(group.choices())
        yield f"  {group.name}={f'[{choices}]' if group.is_list else choices}   ({describe_default(group)})"


def _setting_lines() -> Iterator[str]:
    for _, title, rows in setting_sections():
        yield from ("", f"{title}:", *map(_format_row, rows))


def setting_sections() -> Iterator[tuple[str, str, list[Row]]]:
    """Yield every setting: of the run, of preprocessing and the engine, and of the choices of every group.

    A section has the name of its group, or an empty one, a title, and a row for each setting.
    """
    yield "", "Settings of the run", list(_rows(run_options(), ""))
    yield "", "Preprocessing of images", list(_rows(preprocess_options(), "preprocess."))
    yield "engine", "Every engine", choice_rows(GROUPS["engine"], "auto")
    for group in GROUPS.values():
        if group.name != "engine":
            yield from _group_sections(group)


def _group_sections(group: Group) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield the options of every choice; of algorithms and models, those that differ from the default one's."""
    note, default_rows = "", list[Row]()
    for choice in group.choices():
        if rows := [row for row in choice_rows(group, choice) if row not in default_rows]:
            yield group.name, f"{group.name}={choice}{note}", rows
        if group.name in ("algorithm", "model") and choice == group.default:
            note, default_rows = f" (other options as {choice})", rows


def choice_rows(group: Group, choice: str) -> list[Row]:
    return list(_rows(group.options(choice), f"{group.prefix(choice)}."))


def _rows(options: Iterable[Option], prefix: str) -> Iterator[Row]:
    for option in options:
        if nested := nested_options(option):
            yield from _rows(nested, f"{prefix}{option.name}.")
        elif is_plain(option):
            yield f"{prefix}{option.name}={_format_default(option.default)}", option.help


def _format_row(row: Row) -> str:
    setting, help = row
    return f"  {setting:<46} {help}".rstrip()


def _format_default(default: Any) -> str:
    """Return a default as typed on the command line."""
    if default is MISSING:
        return "..."
    return (default or "''") if isinstance(default, str) else json.dumps(default, separators=(",", ":"))
