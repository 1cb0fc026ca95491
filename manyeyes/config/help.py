"""The help of `manyeyes run`: every group with its options, and every setting with its default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from manyeyes.config.presets import DEFAULTS, OPTIONS
from manyeyes.config.schema import Config

HEAD = """usage: manyeyes run [group=option ...] [setting=value ...] [--multirun] [--cfg job]

Train; every run is kept in a folder, with its settings, metrics, checkpoint and model.

  manyeyes run algorithm=fedavgm algorithm.lr=0.03 rounds=200
  manyeyes run --multirun algorithm=fedavg,fedavgm seed=0,1,2      a sweep: every combination
  manyeyes run resume=runs/NAME                                    continue a run
  manyeyes run algorithm=fedvc --cfg job                           show the settings, train nothing
"""


def run_help() -> str:
    groups = [f"  {group}={'|'.join(options)}   ({DEFAULTS[group]})" for group, options in OPTIONS.items()]
    return "\n".join(
        [HEAD, "Groups (and what is taken if you say nothing):", *groups, "", "Settings:", *_lines(Config)]
    )


def _lines(node: Any, prefix: str = "") -> Iterator[str]:
    for one in fields(node):
        if one.name == "data":
            for option in ("synthetic", "store"):
                yield f"  with data={option}{'' if option == 'synthetic' else ' or a dataset by name'}:"
                yield from _lines(OPTIONS["data"][option], "data.")
            yield "  always:"
            continue
        nested = one.default_factory
        if is_dataclass(nested):
            yield from _lines(nested, f"{prefix}{one.name}.")
            continue
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        shown = str(default).lower() if isinstance(default, bool) else str(default) or "''"
        yield f"  {prefix + one.name + '=' + shown:<42} {one.metadata['meaning']}"
