"""From composed settings to a run in its folder."""

import os
import sys
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from manyeyes.config import build
from manyeyes.config.compose import prepare_overrides, resume_command
from manyeyes.config.errors import check_settings, format_error, is_config_error, is_out_of_memory
from manyeyes.config.groups import GROUPS, list_key
from manyeyes.config.launchers import wait_for_all_jobs
from manyeyes.config.sweep import swept_overrides
from manyeyes.core.registry import UNKNOWN, format_value, suggestion
from manyeyes.core.state import DivergenceError
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.io.packages import optional_packages
from manyeyes.io.parsing import first_line, parse_yaml
from manyeyes.io.steps import announce, shows_progress
from manyeyes.training.config import RunConfig
from manyeyes.training.loop import Interrupted
from manyeyes.training.progress import show_progress
from manyeyes.training.result import Result
from manyeyes.training.run_checksums import check_text
from manyeyes.training.run_files import CAVEATS_KEY, CONFIG_FILE, METRICS_FILE, check_version, with_caveats
from manyeyes.training.run_folder import read_events, unused_path
from manyeyes.training.train import noise_mismatch, train

ALWAYS_DESCRIBED = ("preprocess", "engine", "trackers", "callbacks", "metrics")  # of a run, in its folder
RUN_OVERRIDES = ("rounds", "max_local_batches", "evaluate_every", "evaluate_every_fraction", "checkpoint_seconds")
RESUME_OVERRIDES = (*RUN_OVERRIDES, "client_state_cache_mib", "trackers", "callbacks", "engine")


def run_jobs(flags: Sequence[str], overrides: Sequence[str]) -> list[Exception]:
    """Train one run, or each of a sweep, as Hydra composes them; return the failures."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors are raised, and can be printed in one sentence
    sys.argv = ["manyeyes run", *flags, *prepare_overrides(overrides)]  # where Hydra reads its arguments
    failures: list[Exception] = []
    process = os.getpid()

    def job(config: DictConfig) -> float | None:
        value = run_one(config, failures)
        if failures and os.getpid() != process:  # a launcher's process, whose list of failures stays there
            print(f"manyeyes: {failures[-1]}", file=sys.stderr)
            raise failures[-1]
        return value

    launcher = next((value for value in overrides if value.startswith("hydra/launcher=")), "").partition("=")[2]
    try:
        with wait_for_all_jobs(launcher, numbered=True) if launcher else nullcontext():
            hydra.main(version_base="1.3", config_path=None, config_name="config")(job)()
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error, overrides)) from None
        raise
    return failures


def run_one(config: DictConfig, failures: list[Exception]) -> float | None:
    """Train one run, or one of a sweep: return what a sweep may optimize; a failure does not stop the others."""
    try:
        check_settings(config)
        with optional_packages():
            result = _train_composed(config)
        if result.folder is not None:  # of several processes of one run, only the first writes its folder
            swept = "".join(f" {override}" for override in swept_overrides(config))
            print(with_caveats(f"{result.folder}{swept}: {result.describe()}", result.caveats))
    except Exception as error:
        if is_config_error(error) or is_out_of_memory(error):
            error = ValueError(format_error(error))
        if not isinstance(error, ValueError | DivergenceError | PeerLostError | OSError):
            raise
        job = HydraConfig.get()
        failures.append(ValueError(f"run {job.job.num}: {error}") if job.mode == RunMode.MULTIRUN else error)
        return None
    return result.final.get(result.metric)


def _train_composed(config: DictConfig) -> Result:
    """Train a run as Hydra has composed it: a new one, or one that is resumed."""
    if config.resume:
        return _resume(Path(config.resume), config)
    for option, slot in build.ignored_options(config).items():
        print(
            f"algorithm.{option} has no effect, because {slot} is replaced: set the options of {slot}.", file=sys.stderr
        )
    for note in build.privacy_notes(config):
        print(note, file=sys.stderr)
    return train_from(config, _new_folder(config))


def _resume(folder: Path, config: DictConfig) -> Result:
    """Continue a run; of one that was complete, say that nothing was trained."""
    settings = resumed_settings(folder, config, HydraConfig.get().overrides.task)
    check_complete(folder / CONFIG_FILE, settings)
    is_calibrated = (settings.get("privacy") or {}).get("noise_multiplier") == 0
    if is_calibrated and (mismatch := noise_mismatch(folder, settings)):
        raise ValueError(f"{folder} {mismatch}.")
    events = read_events(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
    result = train_from(settings, folder, resume=True)
    if events and result.events[-1]["round"] == (last := events[-1]["round"]):
        fix = f": add rounds=N with N above {last} to continue it"
        if settings.get("privacy"):
            fix = ": its noise was calibrated for this number of rounds, and more of them need a new run"
        print(f"The run in {folder} was complete after round {last}, and nothing was trained{fix}.", file=sys.stderr)
    return result


def train_from(config: DictConfig | Mapping[str, Any], folder: Path, resume: bool = False) -> Result:
    """Train the run that settings describe, in `folder`."""
    settings = build.plain(config)
    description, options = build.describe_settings(settings), build.train_options(settings)
    build.check_cohort(settings, options["algorithm"])
    title = (settings["algorithm"] or {}).get("name", "training")
    with show_progress(title, shows_progress()):
        announce(f"loading data={settings['data']['name']}")
        population = build.build_population(settings)
    try:
        return train(
            population,
            settings["model"],
            folder=folder,
            resume=resume,
            metadata=description,
            title=title,
            progress=shows_progress(),
            **options,
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped} Continue with: {resume_command(folder)}") from None


def _new_folder(config: DictConfig) -> Path:
    """Return the folder of a new run: as the settings say, or by time and algorithm."""
    if config.folder:
        return Path(config.folder)
    job = HydraConfig.get()
    if job.mode == RunMode.MULTIRUN:
        return Path(job.sweep.dir, str(job.job.num))
    return unused_path(Path("runs", f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{list_key(config.algorithm.name)}"))


def resumed_settings(folder: Path, config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings in a run's folder, changed by the overrides that a resumed run allows."""
    settings, new = read_settings(folder), build.plain(config)
    new |= {name: build.listed(new[name]) for name in build.LISTS}  # as a folder has them
    incomplete = {name for name, value in settings.items() if _is_incomplete(name, value)}
    check_resume_overrides(overrides, incomplete)
    for override in overrides:
        keys = override.partition("=")[0].lstrip("+~").split(".")
        if keys == ["engine"]:  # all engines have the same options, which the run keeps
            keys = ["engine", "name"]
        if keys[0] in incomplete:
            settings[keys[0]] = new[keys[0]]
        elif keys != ["resume"]:
            _copy(keys, new, settings)
    if name := next((name for name, value in settings.items() if _is_incomplete(name, value)), None):
        problem = f"{folder} was started in Python, and does not record how its {name} was made"
        fix = f"add {name}=..., or continue it in Python with train(..., folder={str(folder)!r}, resume=True)"
        raise ValueError(f"{problem}: {fix}")
    return settings


def check_resume_overrides(overrides: Sequence[str], incomplete: Container[str]) -> None:
    """Refuse overrides of settings that cannot change in a resumed run, unless its folder does not have them."""
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        group = name.partition(".")[0]
        if name != "resume" and group not in RESUME_OVERRIDES and group not in incomplete:
            raise ValueError(f"{name} cannot change in a resumed run: only {', '.join(RESUME_OVERRIDES)} can.")


def _is_incomplete(name: str, value: Any) -> bool:
    """Return whether a run that began in Python could not describe its data, its model or an option of a component."""
    if value is None:
        return name in ("data", "model")
    return isinstance(value, Mapping) and UNKNOWN in value.values()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the description of the run in a folder."""
    check_version(folder)
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"Found no run to resume in {folder}: give the folder of a run.")
    data = path.read_bytes()
    check_text(folder, CONFIG_FILE, data)
    try:
        settings = parse_yaml(data.decode())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({first_line(error)}): the run cannot be resumed.") from error
    if not isinstance(settings, dict) or "sources" not in settings:
        raise ValueError(f"{path} is damaged or of an earlier version of manyeyes: start the run again.")
    return settings


def check_complete(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings of a run's folder that lack one that a run needs, have an unknown one, or a value in place of options."""
    known = {*(declared.name for declared in fields(RunConfig)), *GROUPS, "preprocess", "sources", CAVEATS_KEY}
    for name in sorted(known - settings.keys() - {"partitioner", CAVEATS_KEY}):
        raise ValueError(f"{path} has no `{name}`: restore the file, or start the run again.")
    is_of_command = settings["algorithm"] is not None  # in Python, `train(metadata=...)` may add any
    for name in sorted(map(str, settings.keys() - known)) if is_of_command else ():
        raise ValueError(f"{path} has an unknown setting `{name}`{suggestion(name, known)}: remove it from the file.")
    for name in ("preprocess", *GROUPS):
        value, is_list = settings.get(name), name in GROUPS and GROUPS[name].is_list
        if not isinstance(value, list if is_list else Mapping) and (value is not None or name in ALWAYS_DESCRIBED):
            raise ValueError(f"{path} has {name}={format_value(value)} in place of options: restore the file.")


def _copy(keys: list[str], source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy one value of nested settings; of a group or an item of a list, all of it."""
    first, *rest = keys
    if not rest or not isinstance(target.get(first), dict):
        target[first] = source[first]
    else:
        _copy(rest, source[first], target[first])
