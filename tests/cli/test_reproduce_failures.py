"""`manyeyes reproduce`: runs that fail, diverge, are damaged or killed are named, and stop no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli.reproduce import reproduce
from manyeyes.papers.launchers import LauncherError
from manyeyes.papers.plan import ReproduceOptions, jobs
from manyeyes.papers.runner import RunnerOptions, error_message, run_all
from tests.small_exhibits import FIGURE, HERE, TABLE, accuracy

pytestmark = pytest.mark.usefixtures("papers")


def test_a_run_that_fails_is_named_and_stops_no_other(capsys: Any) -> None:
    assert reproduce(["test.table2", *HERE]) == 1
    said = capsys.readouterr()
    make = "manyeyes data prepare flair --out data/flair"
    expected = f"manyeyes: runs/test/gone/0: data/flair is not there; make it with: {make}"
    assert expected in said.err
    assert "2 of 2 measured" in said.out


def test_a_kept_run_of_other_settings_is_named_and_not_used(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=grid", "grid=lr_0.01", "seeds=1", *HERE]) == 0
    kept = Path("runs/test/lr_0.01/0/config.yaml")
    before = kept.read_text()
    kept.write_text(before.replace("lr: 0.01", "lr: 0.02"))
    for words in (HERE, ("--show",)):
        capsys.readouterr()
        assert reproduce(["test.table1", "row=grid", "grid=lr_0.01", "seeds=1", *words]) == 1
        said = capsys.readouterr()
        why = "this run was made with algorithm.lr=0.02 and not 0.01: remove it, and it is run anew"
        assert said.err == f"manyeyes: runs/test/lr_0.01/0: {why}\n"
        assert "0 of 1 measured" in said.out
    kept.write_text(before.replace("lr: 0.01", "lr: 1.0e-2").replace("device: cpu", "device: cuda"))  # the same
    assert reproduce(["test.table1", "row=grid", "grid=lr_0.01", "seeds=1", "--show"]) == 0


def test_a_run_that_memory_cannot_hold_is_told_in_a_sentence() -> None:
    assert error_message(RuntimeError("CUDA out of memory. Tried to allocate")).startswith(
        "the GPU has too little memory"
    )


def test_a_kept_run_without_the_metric_is_named_and_stops_no_other(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=one", *HERE]) == 0
    kept = Path("runs/test/fedavg/0/metrics.jsonl")
    kept.write_text(kept.read_text().replace('"accuracy"', '"precision"'))
    capsys.readouterr()
    assert reproduce(["test.table1", "row=one", "--show"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("manyeyes: runs/test/fedavg/0: this run has no values of 'accuracy'")
    other = 100 * accuracy("test/fedavg/1", 1)
    assert f"| one | accuracy after 1 rounds | 50 ± 1 % | {other:,.4g} |" in Path("runs/test/table1.md").read_text()


def test_what_has_diverged_is_said_and_tried_again_only_when_asked_to(capsys: Any) -> None:
    words = ["test.table1", "row=grid", "grid=lr_1e30", "seeds=1", *HERE]
    folder = Path("runs/test/lr_1e30/0")
    assert reproduce(words) == 0
    told = f"{folder} has diverged, and is not tried again without again=true\n"
    assert told in capsys.readouterr().err
    assert "| grid | accuracy |  | diverged |" in Path("runs/test/table1.md").read_text()
    before = (folder / "diverged.txt").stat().st_mtime_ns
    assert reproduce(words) == 0
    assert capsys.readouterr().err == told
    assert (folder / "diverged.txt").stat().st_mtime_ns == before
    assert reproduce([*words, "again=true"]) == 0
    assert (folder / "diverged.txt").stat().st_mtime_ns > before


@pytest.mark.usefixtures("fresh_joblib")
@pytest.mark.parametrize("means", [["parallel=3"], ["launcher=joblib", "parallel=3"]], ids=["processes", "joblib"])
def test_side_by_side_runs_are_those_made_one_by_one_and_a_failure_stops_no_other(
    means: list[str], capsys: Any
) -> None:
    if means[0] == "launcher=joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert reproduce(["test.figure3", "grid=fedavg", *HERE, "folder=alone"]) == 0
    capsys.readouterr()
    assert reproduce(["test.figure3", *HERE, *means]) == 1
    said = capsys.readouterr()
    assert "3 of 3 runs are to be done" in said.err
    assert "runs/test/lr_1e30/0 has diverged" in said.err
    assert said.err.splitlines()[-1].startswith("manyeyes: runs/test/none/0: ")
    assert "epochs" in said.err.splitlines()[-1]
    assert "1 of 1 measured" in said.out
    models = [Path(folder, "test/fedavg/0/model.safetensors").read_bytes() for folder in ("alone", "runs")]
    assert models[0] == models[1]


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_run_that_another_command_has_done_meanwhile_is_no_failure(parallel: int) -> None:
    every = list(jobs(FIGURE, ReproduceOptions()))

    def say(text: str) -> None:
        for job in every:  # when the first is named, all are done elsewhere
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "model.safetensors").touch()

    assert run_all(every, RunnerOptions(parallel=parallel), say) == []
    assert sorted(Path("runs").rglob("metrics.jsonl")) == []


def test_a_damaged_run_is_named(capsys: Any) -> None:
    for name in ("all", "fedavg"):
        Path(f"runs/test/{name}/0").mkdir(parents=True)
        Path(f"runs/test/{name}/0/model.safetensors").touch()
        Path(f"runs/test/{name}/0/metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\nx\n')
    assert reproduce(["test.figure1", "--plan"]) == 0
    assert "0 of 2 runs are to be done" in capsys.readouterr().out
    assert reproduce(["test.figure1", "--show"]) == 1
    told = capsys.readouterr()
    for name, line in zip(("all", "fedavg"), told.err.splitlines(), strict=True):
        assert re.fullmatch(
            rf"manyeyes: runs/test/{name}/0 is damaged \(Expecting.*\): remove it, and it is run anew", line
        )
    assert "0 of 2 measured" in told.out


def test_a_process_of_joblibs_that_is_killed_stops_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(jobs(TABLE, ReproduceOptions()))
    assert len(every) == 8
    given: list[list[Path]] = []

    def launch(launcher: str, options: list[str], words: list[list[str]], place: Path) -> list[str]:
        """One job is done, the next is killed, and with it the one beside it; those behind are not begun."""
        batch = [next(job.folder for job in every if job.overrides() == each) for each in words]
        given.append(batch)
        for folder in batch[:3]:
            folder.mkdir(parents=True, exist_ok=True)
        done = batch[:1] if batch != [every[1].folder] else []  # the second is killed when it is alone, too
        for folder in done:
            (folder / "model.safetensors").touch()
        if done != batch:
            raise LauncherError("joblib: a worker process was terminated")
        return [""]

    monkeypatch.setattr("manyeyes.papers.runner.launch", launch)
    told = run_all(every, RunnerOptions(launcher="joblib"), lambda text: None)
    assert told == [f"{every[1].folder}: joblib: a worker process was terminated"]
    places = [[next(i for i, job in enumerate(every) if job.folder == folder) for folder in batch] for batch in given]
    assert places == [[0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7], [6, 7], [1], [2], [4], [5], [7]]


def test_what_is_said_is_written_a_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("sys.stderr.write", written.append)
    assert reproduce(["test.figure3", "grid=none", *HERE]) == 1  # it is refused, and quickly
    assert written[1] == "1 of 1: runs/test/none/0\n", "else runs side by side would write into each other's lines"


def test_a_launcher_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="there is no launcher 'nothing' here"):
        reproduce(["test.figure1", "launcher=nothing", *HERE])
