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


PROJECT = "manyeyes"


def revision(package: Path) -> str | None:
    """Return the git revision of the package in this folder, or None where it does not run from its own checkout.

    A repository that merely encloses the package, such as a user's around a virtual environment, is not its checkout.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    top = _git(package, "rev-parse", "--show-toplevel")
    if not top or _project(Path(top) / "pyproject.toml") != PROJECT:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40") or None


def _git(folder: Path, *args: str) -> str | None:
    """Return what git prints in this folder, or None where it fails or is not installed."""
    try:
        process = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _project(path: Path) -> str | None:
    """Return the name of the project that a pyproject.toml describes."""
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError):
        return None
    return project.get("name") if isinstance(project, dict) else None
