"""From composed settings to a run in its folder."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from manyeyes.config.build import (
    build_algorithm,
    build_items,
    build_model,
    build_population,
    build_preprocess,
    plain,
    train_options,
)
from manyeyes.config.compose import resume_command
from manyeyes.config.describe import describe_run
from manyeyes.config.errors import check_settings, format_error, is_config_error, is_out_of_memory
from manyeyes.config.groups import list_key
from manyeyes.core.state import DivergenceError
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.training.loop import Interrupted
from manyeyes.training.result import Result
from manyeyes.training.run_folder import unused_path
from manyeyes.training.train import train

SUMMARY_METRICS = ("accuracy", "macro_accuracy", "macro_ap", "micro_ap", "macro_f1", "micro_f1", "loss")
USER_METRICS = ("user_mean", "personalized_user_mean")


def run_one(config: DictConfig, failures: list[Exception]) -> float | None:
    """Train one run, or one of a sweep: return what a sweep may optimize; a failure does not stop the others."""
    try:
        check_settings(config)
        result = _train_composed(config)
    except (ValueError, DivergenceError, PeerLostError, OSError, OmegaConfBaseException) as error:
        failures.append(_with_number(ValueError(format_error(error)) if is_config_error(error) else error))
        return None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        failures.append(_with_number(ValueError(format_error(error))))
        return None
    if result.folder is not None:  # of several processes of one run, only the first writes its folder
        summary = [
            f"{name} {value:.4f}" for name, value in result.final.items() if name in SUMMARY_METRICS + USER_METRICS
        ]
        print(f"{result.folder}: {', '.join(summary)}")
    return result.final.get(result.metric)


def train_from(config: DictConfig | Mapping[str, Any], folder: Path, resume: bool = False) -> Result:
    """Train the run that settings describe, in `folder`."""
    settings = plain(config)
    if settings["engine"]["threads"]:
        torch.set_num_threads(settings["engine"]["threads"])
    algorithm = build_algorithm(settings)
    population = build_population(settings)
    options = train_options(settings)
    for name in ("callbacks", "metrics"):
        if items := build_items(name.removesuffix("s"), settings[name]):
            options[name] = items
    try:
        return train(
            population,
            build_model(settings, population),
            algorithm,
            preprocess=build_preprocess(settings),
            folder=folder,
            resume=resume,
            metadata=describe_run(settings, algorithm),
            **options,
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped} Continue with: {resume_command(folder)}") from None


def _train_composed(config: DictConfig) -> Result:
    """Train a run as Hydra has composed it: a new one, or one that is resumed."""
    if not config.resume:
        return train_from(config, _new_folder(config))
    folder = Path(config.resume)
    return train_from(resumed_settings(folder, config, HydraConfig.get().overrides.task), folder, resume=True)


def _new_folder(config: DictConfig) -> Path:
    """Return the folder of a new run: as the settings say, or by time and algorithm."""
    if config.folder:
        return Path(config.folder)
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        return Path(job.sweep.dir, str(job.job.num))
    return unused_path(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{list_key(config.algorithm.name)}"))


def _with_number(error: Exception) -> Exception:
    """Return the error, in a sweep with the number of the run that it ended."""
    job = HydraConfig.get()
    return ValueError(f"run {job.job.num}: {error}") if job.mode == RunMode.MULTIRUN else error


RESUME_OVERRIDES = (
    "rounds",
    "max_local_batches",
    "evaluate_every",
    "evaluate_every_fraction",
    "checkpoint_seconds",
    "client_state_cache_mib",
    "trackers",
    "callbacks",
    "engine",
)
NAMEABLE = ("data", "model")  # which a run that began in Python may not be able to describe


def resumed_settings(folder: Path, config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings in a run's folder, changed by the overrides that a resumed run allows."""
    settings = read_settings(folder)
    new = plain(config)
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        group = name.partition(".")[0]
        if name == "resume":
            continue
        if group not in RESUME_OVERRIDES and not (group in NAMEABLE and settings.get(group) is None):
            raise ValueError(f"{name} cannot change in a resumed run: only {', '.join(RESUME_OVERRIDES)} can.")
        _copy(name.split("."), new, settings)
    for name in NAMEABLE:
        if settings.get(name) is None:
            raise ValueError(
                f"{folder} was begun in Python with a {name} that has no name: continue it with "
                f"train(..., folder={str(folder)!r}, resume=True), or add {name}=..."
            )
    return settings


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the description of the run in a folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"There is no run to resume in {folder}: give the folder of a run.")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}): the run cannot be resumed.") from error
    if not isinstance(settings, dict) or "sources" not in settings:
        raise ValueError(f"{folder} was written by an earlier version of manyeyes, or is damaged: start the run again.")
    return settings


def _copy(keys: list[str], source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy one value of nested settings; of a group or an item of a list, all of it."""
    first, *rest = keys
    if not rest or not isinstance(target.get(first), dict):
        target[first] = source[first]
    else:
        _copy(rest, source[first], target[first])
