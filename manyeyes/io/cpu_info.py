"""The name of this machine's processor."""

import platform
from functools import cache
from pathlib import Path

CPU_FIELDS = ("vendor_id", "model name", "cpu family", "model")  # virtual machines often hide the name, not the numbers


@cache
def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor as the system names it: 'AuthenticAMD, AMD EPYC, cpu family 26, model 2'."""
    try:
        first_core = path.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        first_core = ""
    rows = (line.partition(":") for line in first_core.splitlines())
    values = {name.strip(): value.strip() for name, _, value in rows}
    parts = [
        f"{name} {values[name]}" if values[name].isdigit() else values[name] for name in CPU_FIELDS if name in values
    ]
    return ", ".join(parts) or platform.processor() or platform.machine()
