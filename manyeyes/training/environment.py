"""The environment of a run: versions, machine and revision."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from manyeyes.io.cpu_info import cpu_name
from manyeyes.training.revision import revision

PACKAGES = ("manyeyes", "torch", "numpy", "hydra-core", "safetensors")


def environment() -> dict[str, Any]:
    """Return what someone needs to know to repeat a run: versions, machine and revision."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: installed for name in PACKAGES if (installed := package_version(name))},
        "revision": revision(Path(__file__).parents[1]),
        "command": sys.argv,
    }


def package_version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
