"""Running what an item needs: here one after the other, in processes side by side, or by one of Hydra's launchers."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from manyeyes.config.build import build_run_config
from manyeyes.config.compose import compose_config, hydra_context, quote_override
from manyeyes.config.errors import format_error, is_config_error, is_out_of_memory
from manyeyes.config.run import RESUME_OVERRIDES, train_from
from manyeyes.core.state import DivergenceError
from manyeyes.engines.multiprocess.worker import cores
from manyeyes.papers.estimate import estimate, seconds_a_round
from manyeyes.papers.exhibit import DatasetRecipe
from manyeyes.papers.launchers import LauncherError, launch
from manyeyes.papers.plan import PlannedRun
from manyeyes.training.processes import Train, run_parallel

EXPECTED = (ValueError, DivergenceError, OSError)  # failures that say in a sentence what to do
LEFT = ("empty", "running", "stale", "stopped", "failed")  # states of a run that is still to be done
LOOK = 0.5  # seconds between looks at the first rounds


@dataclass(frozen=True)
class RunnerOptions:
    """How runs are run; `extra` are settings of the machine for each."""

    extra: tuple[str, ...] = ()
    parallel: int = 1  # processes side by side
    launcher: str = ""  # one of Hydra's: joblib, submitit_local, submitit_slurm, ...
    again: bool = False  # try what has diverged once more, from its beginning

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError(f"parallel is {self.parallel}: it must be at least 1")
        if self.parallel > 1 and self.launcher and self.launcher != "joblib":
            raise ValueError(f"parallel is for this machine: give {self.launcher} its own launcher.* settings")


def run_all(jobs: list[PlannedRun], means: RunnerOptions, say: Callable[[str], None]) -> list[str]:
    """Run what is missing; returns a sentence for each run that failed, and says which have diverged."""
    for job in jobs:
        if means.again and job.status == "diverged":
            job.reset()
    todo = [job for job in jobs if job.status in LEFT]
    failures = {job.folder: reason for job in todo if (reason := missing_dataset(job.run.store))}
    todo = [job for job in todo if job.folder not in failures]
    if todo:
        _check(todo[0], means)
        say(estimate(jobs, means.parallel))
        with _first_rounds(jobs, todo, means, say):
            failures |= _how(means)(todo, means, say)
    for job in jobs:
        if job.status == "finished":  # though the launcher may have complained, or another command was quicker
            failures.pop(job.folder, None)
        elif job.status == "diverged":
            failures.pop(job.folder, None)
            say(f"{job.folder} has diverged, and is not tried again without again=true")
        elif job in todo:
            failures.setdefault(job.folder, "it did not come to its end")
    return [_named(folder, reason) for folder, reason in failures.items()]


def _named(folder: Path, reason: str) -> str:
    return reason if reason.startswith(f"{folder} ") else f"{folder}: {reason}"


def missing_dataset(store: DatasetRecipe | None) -> str:
    """What to do about a dataset that is not there; empty where it is."""
    if store is None or Path(store.path).exists():
        return ""
    return f"{store.path} is not there; make it with: {store.prepare}"


def error_message(error: Exception) -> str:
    if is_config_error(error) or is_out_of_memory(error):
        return format_error(error)
    return str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"


def _check(job: PlannedRun, means: RunnerOptions) -> None:
    """Refuse at once what a person has set for all runs and no run can have."""
    ours = [word for word in means.extra if not word.startswith("launcher.")]
    build_run_config(compose_config([*map(quote_override, job.settings), *ours]))


Failures = dict[Path, str]


def _how(means: RunnerOptions) -> Callable[[list[PlannedRun], RunnerOptions, Callable[[str], None]], Failures]:
    if means.launcher:
        return _launched
    return _one_by_one if means.parallel == 1 else _side_by_side


def _one_by_one(todo: list[PlannedRun], means: RunnerOptions, say: Callable[[str], None]) -> Failures:
    failures = {}
    for number, job in enumerate(todo, 1):
        if job.status not in LEFT:
            continue  # another command has done it meanwhile
        say(f"{number} of {len(todo)}: {job.folder}")
        try:
            config = compose_config([*map(quote_override, job.settings), *means.extra])
            train_from(config, job.folder, resume=job.can_resume)
        except Exception as error:  # a night of runs does not end with one of them
            failures[job.folder] = error_message(error)
    return failures


def _side_by_side(todo: list[PlannedRun], means: RunnerOptions, say: Callable[[str], None]) -> Failures:
    """Each in a process of its own, with its share of the cores."""
    share = (f"engine.workers={max(1, cores() // means.parallel)}",)

    def one(number: int, job: PlannedRun, train: Train) -> str:
        if job.status not in LEFT:
            return ""  # another command has done it meanwhile
        say(f"{number} of {len(todo)}: {job.folder}")
        return train(commanded(job, (*share, *means.extra)))

    told = run_parallel([partial(one, number, job) for number, job in enumerate(todo, 1)], means.parallel)
    return {job.folder: reason for job, reason in zip(todo, told, strict=True) if reason}


def _launched(todo: list[PlannedRun], means: RunnerOptions, say: Callable[[str], None]) -> Failures:
    ours = [word for word in means.extra if not word.startswith("launcher.")]
    options = [f"hydra.{word}" for word in means.extra if word.startswith("launcher.")]
    options += [f"hydra.launcher.n_jobs={means.parallel}"] if means.parallel > 1 else []
    place = todo[0].folder.parent.parent / ".launched"
    failures: Failures = {}
    batches = [todo]
    while batches:
        batch = batches.pop(0)
        say(f"{means.launcher} gets {len(batch)} of {len(todo)} runs")
        try:
            with hydra_context():
                told = launch(means.launcher, options, [commanded(job, ours) for job in batch], place)
        except LauncherError as error:
            told = [str(error)] * len(batch)
            begun = [job for job in batch if job.folder.exists()]
            if means.launcher == "joblib" and begun and len(batch) > 1:  # one was killed, and with it all processes
                rest = [job for job in batch if job not in begun]
                batches = [*([rest] if rest else []), *batches, *([job] for job in begun if job.status in LEFT)]
        failures |= {job.folder: reason for job, reason in zip(batch, told, strict=True) if reason}
    return failures


def commanded(job: PlannedRun, extra: Sequence[str]) -> list[str]:
    """The words of `manyeyes run` that begin the job or go on with it."""
    if not job.can_resume:
        return job.overrides(extra)
    return [
        quote_override(f"resume={job.folder}"),
        *(word for word in extra if word.partition("=")[0].partition(".")[0] in RESUME_OVERRIDES),
    ]


@contextmanager
def _first_rounds(
    jobs: list[PlannedRun], todo: list[PlannedRun], means: RunnerOptions, say: Callable[[str], None]
) -> Iterator[None]:
    """Once some rounds of a first run are played, say how long all will take, unless that was known before."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            if any(seconds_a_round(job.folder) is not None and job.rounds > 5 for job in todo):
                say(estimate(jobs, means.parallel))
                return

    known = any(seconds_a_round(job.folder) is not None for job in jobs)
    watcher = threading.Thread(target=look, daemon=True)
    if not known:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        if watcher.is_alive():
            watcher.join()
