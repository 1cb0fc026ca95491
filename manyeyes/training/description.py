"""What a run is, as plain data: its settings and components by name, and the versions, machine and revision."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import DESCRIPTION_ATTRIBUTE, SETTINGS, describe, import_path, source_hashes
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions
from manyeyes.io.cpu_info import cpu_name
from manyeyes.models.flat import FlatModel
from manyeyes.training.config import RunConfig

PROJECT = "manyeyes"
PACKAGES = (PROJECT, "torch", "numpy", "hydra-core", "safetensors")


def describe_training(
    algorithm: Algorithm,
    model: Any,
    preprocess: Preprocess,
    config: RunConfig,
    engine: EngineOptions,
    trackers: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    metrics: Iterable[Any] = (),
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings of a run in the format of `manyeyes run`; `metadata` says what the objects do not show."""
    components = {slot: getattr(algorithm, slot) for slot in SLOTS}
    lists = {"tracker": tuple(trackers), "callback": tuple(callbacks), "metric": tuple(metrics)}
    engine_options = asdict(engine)
    description = {
        "data": None,  # arrays have no name
        "model": {"name": model} if isinstance(model, str) else model if isinstance(model, Mapping) else None,
        "algorithm": None,  # it may have any components
        **{slot: None if part is None else describe(slot, part) for slot, part in components.items()},
        "preprocess": asdict(preprocess),
        "engine": {"name": engine_options.pop("engine"), **engine_options},
        **{SETTINGS[slot]: [describe(slot, item) for item in items] for slot, items in lists.items()},
        **asdict(config),
        **(metadata or {}),
    }
    description["sources"] = source_hashes([*components.values(), *chain(*lists.values())], description)
    return {name: as_plain(value) for name, value in description.items()}


def warn_of_changed_sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Name the components whose source has changed since the run began."""
    old_hashes, new_hashes = old.get("sources") or {}, new.get("sources") or {}
    for path, digest in new_hashes.items():
        if old_hashes.get(path, digest) != digest:
            print(f"The source of {path} has changed since the run began: results may differ.", file=sys.stderr)


def as_plain(value: Any) -> Any:
    """Return a value as YAML can hold it; what it cannot hold becomes text."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def fingerprint(
    algorithm: Algorithm, preprocess: Preprocess, seed: int, model: FlatModel, population: Population
) -> str:
    """Return a hash of everything that the weights depend on, apart from their initial values."""
    components = {slot: _content(slot, getattr(algorithm, slot)) for slot in SLOTS}
    content = (components, _content("preprocess", preprocess), seed, repr(model.shapes))
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(content, sort_keys=True, default=_plain).encode())
    for array in (population.offsets, population.user_ids, population.image_indices, *population.labels.nonzero()):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _content(slot: str, component: Any) -> Any:
    """Return what a component is: its name and its options or, of a plain class, its attributes."""
    if component is None:
        return None
    description = describe(slot, component)
    if is_dataclass(component) or not getattr(component, "__dict__", {}):
        return [description, {}]
    return [description["name"], {n: value for n, value in vars(component).items() if n != DESCRIPTION_ATTRIBUTE}]


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON cannot hold."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        return [import_path(value), {field.name: getattr(value, field.name) for field in fields(value) if field.repr}]
    return import_path(value)


def environment() -> dict[str, Any]:
    """Return what someone needs to know to repeat a run: versions, machine and revision."""
    packages = {name: installed for name in PACKAGES if (installed := package_version(name))}
    current = revision(Path(__file__).parents[1])
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": packages,
        "revision": current,
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
