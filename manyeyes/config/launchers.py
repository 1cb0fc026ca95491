"""Jobs given to submitit, one of which may be ended from outside: by a cluster's limits, or by a person."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, NoReturn


@dataclass(frozen=True)
class FailedJob:
    """What comes back of a job that has no result, in the place of Hydra's `JobReturn`."""

    why: str

    @property
    def return_value(self) -> NoReturn:
        raise ValueError(self.why)


@contextmanager
def wait_for_all_jobs(launcher: str, numbered: bool = False) -> Iterator[None]:
    """Within, submitit's launchers wait for every job.

    Hydra's plugin asks one job after the other for its results and leaves, with the others still running, at the first
    that has none: so here a job that was ended gives the sentence that says so.
    """
    if not launcher.startswith("submitit") or find_spec("submitit") is None:  # Hydra says that there is none
        yield
        return
    jobs: Any = import_module("submitit").Job
    numbers, results = count(), jobs.results

    def patient(job: Any) -> list[Any]:
        number = next(numbers)
        try:
            return list(results(job))
        except Exception:
            why = f"its job {job.job_id} ended without a result: what it printed is in {job.paths.stderr}"
            return [FailedJob(f"run {number}: {why}" if numbered else why)]

    jobs.results = patient
    try:
        yield
    finally:
        jobs.results = results
