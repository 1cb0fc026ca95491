"""Train the runs of an exhibit: one after the other, in parallel processes, or with one of Hydra's launchers."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from manyeyes.config.build import build_run_config
from manyeyes.config.compose import compose_config, quote_override
from manyeyes.config.errors import format_error, is_config_error, is_out_of_memory
from manyeyes.config.run import RESUME_OVERRIDES, train_from
from manyeyes.core.state import DivergenceError
from manyeyes.engines.multiprocess.worker import cores
from manyeyes.papers.estimate import DONE, estimate, seconds_per_round
from manyeyes.papers.exhibit import DatasetRecipe
from manyeyes.papers.launchers import LauncherError, launch
from manyeyes.papers.plan import PlannedRun, ReproduceOptions
from manyeyes.training.processes import Train, run_parallel

POLL_SECONDS = 0.5  # between looks at the first rounds
MIN_TIMED_ROUNDS = 5

Log = Callable[[str], None]
Failures = dict[Path, str]  # a sentence for each run folder


def run_all(runs: list[PlannedRun], options: ReproduceOptions, log: Log) -> list[str]:
    """Train the runs that have not finished; return a sentence for each failed one, and log which have diverged."""
    for run in filter(_has_diverged, runs) if options.retry_diverged else ():
        run.reset()
    remaining = [run for run in runs if run.status not in DONE]
    failures = {run.folder: missing_dataset(run.run.dataset) for run in remaining}
    if trainable := [run for run in remaining if not failures[run.folder]]:
        failures |= _train_runs(runs, trainable, options, log)
    for run in filter(_has_diverged, runs):
        log(f"{run.folder} has diverged; to train it again, set retry_diverged=true")
    reasons = [(f"{folder}", reason) for folder, reason in failures.items() if reason]
    return [reason if reason.startswith(f"{folder} ") else f"{folder}: {reason}" for folder, reason in reasons]


def _has_diverged(run: PlannedRun) -> bool:
    return run.status == "diverged"


def missing_dataset(dataset: DatasetRecipe | None) -> str:
    """Return how to prepare a dataset that does not exist; empty if it exists."""
    if dataset is None or Path(dataset.path).exists():
        return ""
    return f"no prepared dataset at {dataset.path}. Create it with: {dataset.prepare_command}"


def error_message(error: Exception) -> str:
    """Return one sentence; an unexpected error is given with its type."""
    if is_config_error(error) or is_out_of_memory(error):
        return format_error(error)
    is_expected = isinstance(error, ValueError | DivergenceError | OSError)
    return str(error) if is_expected else f"{type(error).__name__}: {error}"


def run_overrides(run: PlannedRun, extra: Sequence[str]) -> list[str]:
    """Return the arguments of `manyeyes run` that start the run, or resume it."""
    if not run.can_resume:
        return run.overrides(extra)
    changes = [override for override in extra if override.partition("=")[0].partition(".")[0] in RESUME_OVERRIDES]
    return [quote_override(f"resume={run.folder}"), *changes]


def _train_runs(runs: list[PlannedRun], trainable: list[PlannedRun], options: ReproduceOptions, log: Log) -> Failures:
    build_run_config(compose_config([*map(quote_override, trainable[0].settings), *options.extra]))  # or ValueError
    log(estimate(runs, options.parallel))
    train = _launch if options.launcher else _run_locally
    with _estimate_after_first_rounds(runs, trainable, options, log):
        errors = train(trainable, options, log)
    # Only the folder tells what has finished: the launcher may have failed, or another command trained a run.
    unfinished = [run.folder for run in trainable if run.status not in DONE]
    return {folder: errors.get(folder) or "the run did not finish" for folder in unfinished}


def _run_locally(runs: list[PlannedRun], options: ReproduceOptions, log: Log) -> Failures:
    """Train each run in this process, or several at a time, each in its own process with an equal number of cores."""
    extra = (f"engine.workers={max(1, cores() // options.parallel)}", *options.extra)

    def train_one(number: int, run: PlannedRun, train: Train | None = None) -> str:
        if run.status in DONE:
            return ""  # another command trained it in the meantime
        log(f"{number} of {len(runs)}: {run.folder}")
        return _train_here(run, options.extra) if train is None else train(run_overrides(run, extra))

    tasks = [partial(train_one, number, run) for number, run in enumerate(runs, 1)]
    errors = run_parallel(tasks, options.parallel) if options.parallel > 1 else [task() for task in tasks]
    return dict(zip([run.folder for run in runs], errors, strict=True))


def _train_here(run: PlannedRun, extra: Sequence[str]) -> str:
    try:
        train_from(compose_config([*map(quote_override, run.settings), *extra]), run.folder, resume=run.can_resume)
    except Exception as error:  # one failure must not end a night of runs
        return error_message(error)
    return ""


def _launch(runs: list[PlannedRun], options: ReproduceOptions, log: Log) -> Failures:
    settings = [f"hydra.{setting}" for setting in options.launcher_settings]
    settings += [f"hydra.launcher.n_jobs={options.parallel}"] if options.parallel > 1 else []
    failures, batches = Failures(), [runs]
    while batches:
        batch = batches.pop(0)
        log(f"{options.launcher} gets {len(batch)} of {len(runs)} runs")
        jobs = [run_overrides(run, options.extra) for run in batch]
        try:
            errors = launch(options.launcher, settings, jobs, runs[0].folder.parent.parent / ".launched")
        except LauncherError as error:
            errors = [str(error)] * len(batch)
            others, started = _split_after_crash(batch, options.launcher)
            batches = [*others, *batches, *started]
        failures |= zip([run.folder for run in batch], errors, strict=True)
    return failures


def _split_after_crash(batch: list[PlannedRun], launcher: str) -> tuple[list[list[PlannedRun]], list[list[PlannedRun]]]:
    """Return what to launch again after joblib ended all runs because one was killed: those that had started, alone."""
    started = [run for run in batch if run.folder.exists()]
    if launcher != "joblib" or not started or len(batch) == 1:
        return [], []
    others = [run for run in batch if run not in started]
    return [others] if others else [], [[run] for run in started if run.status not in DONE]


@contextmanager
def _estimate_after_first_rounds(
    runs: list[PlannedRun], trainable: list[PlannedRun], options: ReproduceOptions, log: Log
) -> Iterator[None]:
    """Log the time that all runs need after the first rounds of the first run, unless it was known before."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if any(seconds_per_round(run.folder) is not None and run.rounds > MIN_TIMED_ROUNDS for run in trainable):
                log(estimate(runs, options.parallel))
                return

    if all(seconds_per_round(run.folder) is None for run in runs):
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
