"""Runs submitted to one of Hydra's launchers: joblib's processes on this machine, or a cluster through submitit."""

from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig

from manyeyes.config.compose import hydra_context
from manyeyes.config.launchers import wait_for_all_jobs
from manyeyes.config.run import run_one
from manyeyes.io.packages import install_command
from manyeyes.papers.plan import LAUNCHERS


class LauncherError(Exception):
    """The launcher itself failed, as when one of its processes was killed: some jobs may not have ended, or started."""


def launch(launcher: str, options: list[str], jobs: list[list[str]], log_dir: Path) -> list[str]:
    """Run jobs, each given as overrides of `manyeyes run`, and return an error message for each; empty for success."""
    overrides = [f"hydra/launcher={launcher}", f"hydra.sweep.dir={log_dir}/${{now:%Y-%m-%d_%H-%M-%S}}", *options]
    with hydra_context():
        try:
            config = compose("config", overrides=overrides, return_hydra_config=True)
        except HydraException as error:
            fix = (
                install_command("hydra_submitit_launcher")
                if launcher in LAUNCHERS
                else f"choose {', '.join(LAUNCHERS)}"
            )
            raise ValueError(f"launcher={launcher} is not available, or has no such setting: {fix}.") from error
        context = HydraContext(GlobalHydra.instance().config_loader(), callbacks=Callback())  # type: ignore[arg-type]
        plugin = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=run_job, config=config)
        try:
            with wait_for_all_jobs(launcher):
                results = plugin.launch(jobs, initial_job_idx=0)
        except Exception as error:
            raise LauncherError(f"{launcher}: {error}".partition("\n")[0]) from error
    return list(map(_error_message, results))


def run_job(config: DictConfig) -> str:
    """Run one job, in a process of the launcher, and return its error message."""
    failures: list[Exception] = []
    run_one(config, failures)
    return str(failures[0]) if failures else ""


def _error_message(result: Any) -> str:
    try:
        return str(result.return_value)
    except Exception as error:
        return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
