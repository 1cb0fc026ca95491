"""The git revision of the package's own source."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

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
