"""Jobs of submitit that are killed: the others are waited for, and the failure is reported."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from manyeyes.config.launchers import wait_for_all_jobs

submitit = pytest.importorskip("submitit")


@pytest.fixture
def jobs(tmp_path: Path) -> list[Any]:
    """Three jobs whose processes have ended: the second was killed, and left no result."""
    jobs = [submitit.LocalJob(tmp_path, name) for name in ("7", "8", "9")]
    for job in jobs:
        job._results_timeout_s = 0  # instead of 15 seconds in which a slow disk may show a result
    for job in (jobs[0], jobs[2]):
        job.paths.result_pickle.write_bytes(pickle.dumps(("success", f"result of {job.job_id}")))
    return jobs


@pytest.mark.parametrize(("numbered", "start"), [(False, "job 8"), (True, "run 1: job 8")])
def test_a_killed_job_is_reported_and_the_others_are_waited_for(jobs: list[Any], numbered: bool, start: str) -> None:
    with wait_for_all_jobs("submitit_local", numbered):
        first, killed, last = [job.results()[0] for job in jobs]  # as Hydra's plugin asks them
    assert (first, last) == ("result of 7", "result of 9")
    with pytest.raises(ValueError, match=f"^{start} ended without a result: see .*/8_0_log.err$"):
        _ = killed.return_value


def test_submitit_is_unchanged_afterwards_and_for_other_launchers(jobs: list[Any]) -> None:
    with wait_for_all_jobs("submitit_local"):
        pass
    for launcher in ("joblib", ""):
        with wait_for_all_jobs(launcher), pytest.raises(submitit.core.utils.UncompletedJobError):
            jobs[1].results()
