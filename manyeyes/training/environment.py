"""The environment of a run: versions, machine and revision."""

import os
import platform
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from manyeyes.io.cpu_info import cpu_name

PROJECT = "manyeyes"
PACKAGES = (PROJECT, "torch", "numpy", "hydra-core", "safetensors")


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
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def revision(package: Path) -> str | None:
    """Return the git revision of the package in this folder, or None where it does not run from its own checkout.

    A repository that merely encloses the package, such as a user's around a virtual environment, is not its checkout.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    top = _git(package, "rev-parse", "--show-toplevel")
    try:
        project = tomllib.loads(Path(top or "", "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40") if project == PROJECT else None


def _git(folder: Path, *args: str) -> str | None:
    """Return what git prints in this folder, or None where it fails or is not installed."""
    try:
        process = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
