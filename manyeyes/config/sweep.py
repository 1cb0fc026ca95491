"""What a sweep prints: the overrides of each run, and at its end the command that makes a report of all."""

import shlex
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf


def swept_overrides(config: DictConfig) -> list[str]:
    """Return the overrides of this run of a sweep that the other runs may not have; none without a sweep."""
    job = HydraConfig.get()
    if job.mode != RunMode.MULTIRUN:
        return []
    swept = [override for override in job.overrides.task if override not in sys.argv]
    return [f"{name}={_choice(config, name, value)}" for name, _, value in (text.partition("=") for text in swept)]


def _choice(config: DictConfig, name: str, value: str) -> str:
    """Return the value of an override; of a component of the user's own, its import path."""
    return str(OmegaConf.select(config, f"{name}.name", default=None) or value)


class ReportCommand(Callback):
    """Prints, after the last run of a sweep, the command that makes its report."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        if folder.is_dir():
            print(f"Report of the sweep: manyeyes report {shlex.quote(str(folder))}")
