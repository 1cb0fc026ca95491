"""`manyeyes run`: train with the settings given, once or for every combination of a sweep."""

import sys
from collections.abc import Sequence

from manyeyes.config.groups import GROUPS, setting_names
from manyeyes.config.help import run_help
from manyeyes.config.run import check_resume_overrides, run_jobs

FLAGS = ("--multirun", "-m", "--resolve")
VALUE_FLAGS = ("--cfg", "-c", "--config-dir", "-cd")


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(run_help([arg for arg in argv if not arg.startswith("-")]))
        return 0
    flags, overrides = split_flags(argv)
    _name_repeated(overrides)
    chosen = dict(override.split("=", 1) for override in overrides if "=" in override)
    if "resume" in chosen:
        _check_resume(chosen)
    failures = run_jobs(flags, overrides)
    if failures and not {"--multirun", "-m"} & set(flags):
        raise failures[0]
    for failure in failures:
        print(f"manyeyes: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _name_repeated(overrides: Sequence[str]) -> None:
    """Say which value counts of a setting that is given twice with different ones: Hydra takes the last."""
    values: dict[str, str] = {}
    for override in overrides:
        name, _, value = override.partition("=")
        if values.get(name, value) != value:
            print(f"{name} is given twice: {name}={value} counts, not {name}={values[name]}.", file=sys.stderr)
        values[name] = value


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
            if name[2:] in setting_names():
                raise ValueError(f"Unknown option {arg}: write {name[2:]}={value or next(args, '...')}.")
            raise ValueError(f"Unknown option {arg}: choose --help, --multirun, --cfg job, --resolve or --config-dir.")
        if name in ("--cfg", "-c") and flags[-1] not in ("job", "hydra", "all"):
            raise ValueError(f"--cfg={flags[-1]} is not possible: choose job, hydra or all.")
    return flags, overrides
