"""Jobs of `manyeyes run` given to one of Hydra's launchers: joblib's processes here, or a cluster by submitit."""

from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig

from manyeyes.config.launchers import wait_for_all_jobs
from manyeyes.config.run import run_one

KNOWN = ("joblib", "submitit_local", "submitit_slurm")


class LauncherError(Exception):
    """The launcher has given up, as when a process of its own was killed: some jobs may not have ended, or begun."""


def launch(launcher: str, options: list[str], jobs: list[list[str]], place: Path) -> list[str]:
    """What went wrong with each job, given as words of `manyeyes run`; empty where all went well.

    Within a context of Hydra; what the launcher itself writes goes into `place`.
    """
    words = [f"hydra/launcher={launcher}", f"hydra.sweep.dir={place}/${{now:%Y-%m-%d_%H-%M-%S}}", *options]
    try:
        config = compose("config", overrides=words, return_hydra_config=True)
    except HydraException as error:
        hint = "pip install 'manyeyes[cluster]'" if launcher in KNOWN else f"choose {', '.join(KNOWN)}"
        raise ValueError(f"there is no launcher {launcher!r} here, or it has no such setting: {hint}") from error
    from hydra._internal.callbacks import Callbacks

    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    made = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    try:
        with wait_for_all_jobs(launcher):
            returned = made.launch(jobs, initial_job_idx=0)
    except Exception as error:
        raise LauncherError(f"{launcher}: {error}".partition("\n")[0]) from error
    return [_reason(one) for one in returned]


def task(config: DictConfig) -> str:
    """One job, in whichever process the launcher runs it."""
    failures: list[Exception] = []
    run_one(config, failures)
    return str(failures[0]) if failures else ""


def _reason(returned: Any) -> str:
    try:
        return str(returned.return_value)
    except ValueError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
