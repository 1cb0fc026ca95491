"""Packages that the extras of manyeyes install, and a sentence that says how to get a missing one."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import requires
from typing import Any

_REQUIREMENT = re.compile(r"""(?P<requirement>(?P<name>[\w.-]+)[^;]*);.*extra == ["'](?P<extra>[^"']+)["']""")


class MissingPackageError(ImportError, ValueError):
    """A package that an optional part of manyeyes needs is not installed."""


def optional_requirements() -> dict[str, tuple[str, str]]:
    """Return the requirement and the extra of each optional package, by the name it is imported by."""
    matches = [match for text in requires("manyeyes") or () if (match := _REQUIREMENT.match(text))]
    matches = [match for match in matches if match["name"] != "manyeyes"]  # an extra that contains another one
    return {
        match["name"].replace("-", "_"): (match["requirement"].strip(), match["extra"]) for match in reversed(matches)
    }


def describe_missing(package: str) -> str:
    return f"{package} is not installed: run {install_command(package)}"


def install_command(package: str) -> str:
    """Return the command that installs a package, which is the same however manyeyes itself was installed."""
    requirement, _ = optional_requirements().get(package, (package, ""))
    return f"pip install '{requirement}'"


def import_optional(module: str) -> Any:
    with optional_packages():
        return import_module(module)


@contextmanager
def optional_packages() -> Iterator[None]:
    """Say how to install an optional package whose import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in optional_requirements():
            raise
        raise MissingPackageError(describe_missing(package), name=package) from error
