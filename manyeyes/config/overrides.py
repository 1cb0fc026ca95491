"""Settings as a person types them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PATHS = ("folder", "resume", "data.path")  # settings that are paths
PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*")  # what Hydra reads without quotes


def quote_override(word: str) -> str:
    """The setting, with quotes around a path that Hydra would read otherwise."""
    name, _, value = word.partition("=")
    if name not in PATHS or PLAIN.fullmatch(value) or value[:1] in ("'", '"'):
        return word
    text = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + (r"\"" if found[2] else ""), value)
    return f'{name}="{text}"'


def resume_command(folder: Path) -> str:
    """The command that goes on with a run, as it can be pasted into a shell."""
    return f"manyeyes run {shlex.quote(quote_override(f'resume={folder}'))}"
