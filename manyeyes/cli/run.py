"""`manyeyes run`: train with the settings given, once or for every combination of a sweep."""

import os
import sys
from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from manyeyes.config.compose import prepare_overrides
from manyeyes.config.errors import format_error, is_config_error
from manyeyes.config.groups import GROUPS
from manyeyes.config.help import run_help
from manyeyes.config.launchers import wait_for_all_jobs
from manyeyes.config.run import check_resume_overrides, run_one

FLAGS = ("--multirun", "-m", "--resolve")
VALUE_FLAGS = ("--cfg", "-c", "--config-dir", "-cd")


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(run_help([arg for arg in argv if not arg.startswith("-")]))
        return 0
    flags, overrides = split_flags(argv)
    chosen = dict(override.split("=", 1) for override in overrides if "=" in override)
    if "resume" in chosen:
        _check_resume(chosen)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors are raised, and can be printed in one sentence
    sys.argv = ["manyeyes run", *flags, *prepare_overrides(overrides)]  # where Hydra reads its arguments
    failures: list[Exception] = []
    process = os.getpid()

    def job(config: DictConfig) -> float | None:
        return _run_job(config, failures, process)

    try:
        with wait_for_all_jobs(chosen.get("hydra/launcher", ""), numbered=True):
            hydra.main(version_base="1.3", config_path=None, config_name="config")(job)()
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error, overrides)) from None
        raise
    if failures and not {"--multirun", "-m"} & set(flags):
        raise failures[0]
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _run_job(config: DictConfig, failures: list[Exception], process: int) -> float | None:
    """Train one run; in a process of a launcher, whose list of failures stays there, a failure is printed and raised."""
    value = run_one(config, failures)
    if failures and os.getpid() != process:
        print(f"manyeyes: {failures[-1]}", file=sys.stderr)
        raise failures[-1]
    return value


def _check_resume(chosen: dict[str, str]) -> None:
    """Refuse options of components that the run has and the command does not choose: Hydra does not know them."""
    groups = {name: name.partition(".")[0] for name in chosen}
    check_resume_overrides([name for name, group in groups.items() if group in GROUPS and group not in chosen], ())


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Hydra's flags and the overrides; an unknown flag is refused."""
    flags, overrides, args = list[str](), list[str](), iter(argv)
    for arg in args:
        name, _, value = arg.partition("=")
        if not arg.startswith("-"):
            overrides.append(arg)
        elif arg in FLAGS:
            flags.append(arg)
        elif name in VALUE_FLAGS:
            flags += [name, value or next(args, "")]
        else:
            raise ValueError(f"Unknown option {arg}: choose --help, --multirun, --cfg job, --resolve or --config-dir.")
        if name in ("--cfg", "-c") and flags[-1] not in ("job", "hydra", "all"):
            raise ValueError(f"--cfg={flags[-1]} is not possible: choose job, hydra or all.")
    return flags, overrides
