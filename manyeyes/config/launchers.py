"""Sweeps on a cluster with submitit: wait for every job, also when one is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, NoReturn


@dataclass(frozen=True)
class FailedJob:
    """The result of a job that was killed, with the interface of Hydra's `JobReturn`."""

    reason: str

    @property
    def return_value(self) -> NoReturn:
        raise ValueError(self.reason)


@contextmanager
def wait_for_all_jobs(launcher: str, numbered: bool = False) -> Iterator[None]:
    """Within this context, submitit's launchers wait for every job.

    Hydra's plugin asks each job for its results and stops at the first that has none, while others still run. It has
    no hook for that, and Hydra loads launchers from `hydra_plugins` alone: so `Job.results` is wrapped in here.
    """
    if not launcher.startswith("submitit") or find_spec("submitit") is None:  # Hydra reports that it is missing
        yield
        return
    job_class: Any = import_module("submitit").Job
    indices, results = count(), job_class.results

    def results_or_failure(job: Any) -> list[Any]:
        index = next(indices)
        try:
            return list(results(job))
        except Exception:
            reason = f"job {job.job_id} ended without a result: see {job.paths.stderr}"
            return [FailedJob(f"run {index}: {reason}" if numbered else reason)]

    job_class.results = results_or_failure
    try:
        yield
    finally:
        job_class.results = results
