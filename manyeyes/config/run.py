"""From composed settings to a run in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
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
from manyeyes.config.describe import describe_run
from manyeyes.config.errors import check_settings, format_error, is_config_error, is_out_of_memory
from manyeyes.config.groups import list_key
from manyeyes.config.overrides import resume_command
from manyeyes.config.resume import resumed_settings
from manyeyes.core.state import DivergenceError
from manyeyes.engines.distributed import PeerLostError
from manyeyes.training.interrupt import Interrupted
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
