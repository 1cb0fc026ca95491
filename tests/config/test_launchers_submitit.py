"""Jobs of submitit that are ended from outside: the others are waited for, and each says what became of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from manyeyes.config.launchers import wait_for_all_jobs

submitit = pytest.importorskip("submitit")


@pytest.fixture
def jobs(tmp_path: Path) -> list[Any]:
    """Three whose processes have ended: the second was killed, and left no result."""
    made = [submitit.LocalJob(tmp_path, name) for name in ("7", "8", "9")]
    for job in made:
        job._results_timeout_s = 0  # instead of 15 seconds in which a slow disk may show one
    for job in (made[0], made[2]):
        job.paths.result_pickle.write_bytes(pickle.dumps(("success", f"of {job.job_id}")))
    return made


@pytest.mark.parametrize(("numbered", "begins"), [(False, "its job 8"), (True, "run 1: its job 8")])
def test_a_job_that_was_killed_says_so_and_the_others_are_waited_for(
    jobs: list[Any], numbered: bool, begins: str
) -> None:
    with wait_for_all_jobs("submitit_local", numbered):
        first, killed, last = [job.results()[0] for job in jobs]  # as Hydra's plugin asks them
    assert (first, last) == ("of 7", "of 9")
    with pytest.raises(ValueError, match=f"^{begins} ended without a result: what it printed is in .*/8_0_log.err$"):
        _ = killed.return_value


def test_submitit_is_as_it_was_outside_and_for_other_launchers(jobs: list[Any]) -> None:
    with wait_for_all_jobs("submitit_local"):
        pass
    for launcher in ("joblib", ""):
        with wait_for_all_jobs(launcher), pytest.raises(submitit.core.utils.UncompletedJobError):
            jobs[1].results()
