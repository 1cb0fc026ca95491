"""What the commands of the Flower baselines share; `baselines.toml` has their help and the names of their settings."""

import tomllib
from importlib.resources import files
from typing import Any

from manyeyes.cli import run


def read_baseline(name: str) -> dict[str, Any]:
    """Return a baseline's help, names of settings, ignored settings and, of fedper, its settings for each dataset."""
    return tomllib.loads(files("manyeyes.cli").joinpath("baselines.toml").read_text("utf-8"))[name]


def split_arguments(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return flags for Hydra, and the settings by name."""
    flags, overrides = run.split_flags(argv)
    return flags, dict(override.lstrip("+").partition("=")[::2] for override in overrides)


def translate(baseline: dict[str, Any], settings: dict[str, str]) -> dict[str, str]:
    """Return the settings of `manyeyes run` for those of the baseline, among which some may be ours already."""
    names, ignored = baseline["translations"], tuple(baseline["ignored"])
    return {names.get(name, name): value for name, value in settings.items() if not name.startswith(ignored)}


def train(flags: list[str], settings: dict[str, str]) -> int:
    return run.main([*flags, *(f"{name}={value}" for name, value in settings.items())])
