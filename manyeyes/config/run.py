"""`manyeyes run`: settings to a run in its folder."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from manyeyes.config.build import build_augment, build_model, build_population, build_whole, run_words
from manyeyes.config.errors import check_names, format_error, is_config_error, is_out_of_memory
from manyeyes.config.help import run_help
from manyeyes.config.launchers import wait_for_all_jobs
from manyeyes.config.overrides import resume_command
from manyeyes.config.presets import register
from manyeyes.core.state import DivergenceError
from manyeyes.engines.distributed import PeerLostError
from manyeyes.training.interrupt import Interrupted
from manyeyes.training.result import Result
from manyeyes.training.run_folder import unused_path
from manyeyes.training.train import train

SUMMARY_METRICS = ("accuracy", "macro_accuracy", "macro_ap", "micro_ap", "macro_f1", "micro_f1", "loss")
USER_METRICS = ("user_mean", "adapted_user_mean")
# When a run is continued.
RESUME_OVERRIDES = (
    "rounds",
    "batches",
    "evaluate_every",
    "evaluate_early",
    "checkpoint_seconds",
    "client_memory",
    "track",
    "engine",
)
FLAGS = ("--multirun", "-m", "--resolve")
VALUE_FLAGS = ("--cfg", "-c", "--config-dir", "-cd")


def run(words: list[str]) -> int:
    """Train with the settings given, once or for every combination of a sweep."""
    if "--help" in words or "-h" in words:
        print(run_help())
        return 0
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors come to us, who say them in one sentence
    sys.argv = ["manyeyes run", *_arranged(words)]  # where Hydra looks
    failures: list[Exception] = []
    here = os.getpid()

    def job(config: DictConfig) -> float | None:
        value = run_one(config, failures)
        if failures and os.getpid() != here:  # a launcher's process, whose list stays with it
            print(f"manyeyes: {failures[-1]}", file=sys.stderr)
            raise failures[-1]
        return value

    launcher = next((word.partition("=")[2] for word in words if word.startswith("hydra/launcher=")), "")
    try:
        with wait_for_all_jobs(launcher, numbered=True):
            hydra.main(version_base="1.3", config_path=None, config_name="config")(job)()
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error)) from None
        raise
    if len(failures) == 1:
        raise failures[0]
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def run_one(config: DictConfig, failures: list[Exception]) -> float | None:
    """One run, or one of a sweep: its value is what a sweep may optimise, and its failure does not stop the others."""
    try:
        check_names(config)
        folder, resume = _folder(config), bool(config.resume)
        if resume:
            config = _continued(folder, config)
        result = train_from(config, folder, resume)
    except (ValueError, DivergenceError, PeerLostError, OSError, OmegaConfBaseException) as error:
        failures.append(_named(ValueError(format_error(error)) if is_config_error(error) else error))
        return None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        failures.append(_named(ValueError(format_error(error))))
        return None
    shown = ", ".join(
        f"{name} {value:.4f}" for name, value in result.final.items() if name in SUMMARY_METRICS + USER_METRICS
    )
    if result.folder is not None:  # of several processes of one training the first alone keeps it
        print(f"{result.folder}: {shown}")
    return result.final.get(result.metric)


def _named(error: Exception) -> Exception:
    """In a sweep, the error with the number of the run that it ended."""
    job = HydraConfig.get()
    return ValueError(f"run {job.job.num}: {error}") if job.mode == RunMode.MULTIRUN else error


def train_from(config: Any, folder: Path, resume: bool = False) -> Result:
    """The run that the settings describe, in `folder`."""
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    augment = build_augment(config.augment)
    algorithm = build_whole(config)
    population = build_population(config.data, config.seed)
    model = build_model(config.model, population, augment, config.seed)
    try:
        return train(
            population,
            model,
            algorithm,
            preprocess=augment,
            folder=folder,
            resume=resume,
            metadata=cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)),
            **run_words(config),
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped} Continue with: {resume_command(folder)}") from None


def _arranged(words: list[str]) -> list[str]:
    """Options before settings, as Hydra's parser wants them; one that is unknown is refused."""
    options, settings, left = [], [], iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            settings.append(word)
        elif word in FLAGS:
            options.append(word)
        elif name in VALUE_FLAGS:
            options += [name, value or next(left, "")]
        else:
            raise ValueError(f"{word} is no option: choose --help, --multirun, --cfg job, --resolve or --config-dir")
        if name in ("--cfg", "-c") and options[-1] not in ("job", "hydra", "all"):
            raise ValueError(f"--cfg shows job, hydra or all, not {options[-1]!r}")
    return options + settings


def _folder(config: DictConfig) -> Path:
    """Where the run is kept: as asked, or a new folder by time and algorithm."""
    if config.resume:
        return Path(config.resume)
    if config.folder:
        return Path(config.folder)
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        return Path(job.sweep.dir, str(job.job.num))
    return unused_path(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.algorithm.name}"))


def _continued(folder: Path, config: DictConfig) -> DictConfig:
    """The settings of the run in `folder`, with the changes that a continued run allows."""
    kept = folder / "config.yaml"
    if not kept.is_file():
        raise ValueError(f"{folder} holds no run to continue: give the folder of one")
    try:
        settings = OmegaConf.load(kept)
    except (YAMLError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{kept} is damaged ({why}): the run cannot be continued") from error
    for word in HydraConfig.get().overrides.task:
        name = word.partition("=")[0].lstrip("+~")
        if name == "resume":
            continue
        if name.partition(".")[0] not in RESUME_OVERRIDES:
            raise ValueError(f"{name} cannot change in a continued run: only {', '.join(RESUME_OVERRIDES)} can")
        OmegaConf.update(settings, name, OmegaConf.select(config, name))
    assert isinstance(settings, DictConfig)
    return settings
