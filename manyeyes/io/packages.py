"""Packages that the extras of manyeyes install, and a sentence that says how to get a missing one."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import requires, version
from importlib.util import find_spec
from typing import Any

_REQUIREMENT = re.compile(r"""(?P<requirement>(?P<name>[\w.-]+)[^;]*);.*extra == ["'](?P<extra>[^"']+)["']""")

NEEDED_TOGETHER = ("data", "privacy", "dashboard", "onnx")  # extras of which one feature needs several packages
NEEDS_TORCH = ("timm", "torchvision")  # which may replace PyTorch by another version, unless it is named too


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
    """Return a sentence that names a missing package, and others that are missing of an extra that is used as a whole."""
    known = optional_requirements()
    _, extra = known.get(package, ("", ""))
    others = [name for name, (_, of) in known.items() if of == extra in NEEDED_TOGETHER and name != package]
    missing = [package, *(name for name in others if find_spec(name) is None)]
    names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    return f"{names} {'is' if len(missing) == 1 else 'are'} not installed: run {install_command(*missing)}"


def install_command(*packages: str) -> str:
    """Return the command that installs packages, which is the same however manyeyes itself was installed."""
    known = optional_requirements()
    requirements = [known.get(package, (package, ""))[0] for package in packages]
    if not {*packages}.isdisjoint(NEEDS_TORCH):
        requirements.append(f"torch=={torch_version()}")
    return f"pip install {' '.join(map(repr, requirements))}"


def torch_version() -> str:
    """Return the version of the installed PyTorch, without what its build adds, such as `+cpu`."""
    return version("torch").partition("+")[0]


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
