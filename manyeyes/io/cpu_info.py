"""What kind of core this machine has."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

CPU_FIELDS = (
    "vendor_id",
    "model name",
    "cpu family",
    "model",
)  # virtual machines often hide the name: the numbers stay


@cache
def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """As the system tells: 'AuthenticAMD, AMD EPYC, cpu family 26, model 2'."""
    try:
        first = path.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        first = ""
    rows = (line.partition(":") for line in first.splitlines())
    found = {name.strip(): value.strip() for name, _, value in rows}
    words = [f"{name} {found[name]}" if found[name].isdigit() else found[name] for name in CPU_FIELDS if name in found]
    return ", ".join(words) or platform.processor() or platform.machine()
