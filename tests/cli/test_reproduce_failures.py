"""`manyeyes reproduce`: runs that fail, diverge, are damaged or killed are named, and do not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli import reproduce
from manyeyes.papers.launchers import LauncherError
from manyeyes.papers.plan import ReproduceOptions, planned_runs
from manyeyes.papers.runner import error_message, run_all
from manyeyes.training.run_files import CHECKPOINT_FILE
from tests.small_exhibits import ENGINE, FIGURE, TABLE, read_accuracy

pytestmark = pytest.mark.usefixtures("papers")


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_does_not_stop_the_others(capsys: Any) -> None:
    assert reproduce.main(["test.table2", *ENGINE]) == 1
    output = capsys.readouterr()
    command = "manyeyes data prepare flair --out data/flair"
    assert f"runs/test/gone/0: no prepared dataset at data/flair. Create it with: {command}" in output.err
    assert "2 of 2 measured" in output.out


@pytest.mark.slow
def test_a_run_with_other_settings_is_named_and_not_used(capsys: Any) -> None:
    arguments = ["test.table1", "rows=grid", "grid_filter=lr_0.01", "seeds=1"]
    assert reproduce.main([*arguments, *ENGINE]) == 0
    config = Path("runs/test/lr_0.01/0/config.yaml")
    before = config.read_text()
    config.write_text(before.replace("lr: 0.01", "lr: 0.02"))
    for more in (ENGINE, ("--show",)):
        capsys.readouterr()
        assert reproduce.main([*arguments, *more]) == 1
        output = capsys.readouterr()
        reason = "algorithm.lr of this run is 0.02, not 0.01: remove it to run it again."
        assert output.err == f"manyeyes: runs/test/lr_0.01/0: {reason}\n"
        assert "0 of 1 measured" in output.out
    config.write_text(before.replace("lr: 0.01", "lr: 1.0e-2").replace("device: cpu", "device: cuda"))  # the same
    assert reproduce.main([*arguments, "--show"]) == 0


def test_too_little_memory_is_one_sentence() -> None:
    message = error_message(RuntimeError("CUDA out of memory. Tried to allocate"))
    assert message.startswith("The GPU has too little memory")


@pytest.mark.slow
def test_a_run_without_the_metric_is_named_and_does_not_stop_the_others(capsys: Any) -> None:
    assert reproduce.main(["test.table1", "rows=one", *ENGINE]) == 0
    metrics = Path("runs/test/fedavg/0/metrics.jsonl")
    metrics.write_text(metrics.read_text().replace('"accuracy"', '"precision"'))
    metrics.with_name(CHECKPOINT_FILE).unlink()  # whose checksum is that of the other metrics
    capsys.readouterr()
    assert reproduce.main(["test.table1", "rows=one", "--show"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("manyeyes: runs/test/fedavg/0: The run has no values of 'accuracy'")
    other = 100 * read_accuracy("test/fedavg/1", 1)
    assert f"| one [1] | accuracy after 1 rounds | 50 ± 1 % | {other:,.4g} |" in Path("runs/test/table1.md").read_text()


@pytest.mark.slow
def test_a_run_that_diverged_is_named_and_trained_again_only_on_request(capsys: Any) -> None:
    arguments = ["test.table1", "rows=grid", "grid_filter=lr_1e30", "seeds=1", *ENGINE]
    folder = Path("runs/test/lr_1e30/0")
    assert reproduce.main(arguments) == 0
    message = f"{folder} has diverged; to train it again, set retry_diverged=true\n"
    assert message in capsys.readouterr().err
    assert "| grid | accuracy |  | diverged |" in Path("runs/test/table1.md").read_text()
    before = (folder / "diverged.txt").stat().st_mtime_ns
    assert reproduce.main(arguments) == 0
    assert capsys.readouterr().err == message
    assert (folder / "diverged.txt").stat().st_mtime_ns == before
    assert reproduce.main([*arguments, "retry_diverged=true"]) == 0
    assert (folder / "diverged.txt").stat().st_mtime_ns > before


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_joblib")
@pytest.mark.parametrize("options", [["parallel=3"], ["launcher=joblib", "parallel=3"]], ids=["processes", "joblib"])
def test_parallel_runs_equal_sequential_ones_and_a_failure_does_not_stop_the_others(
    options: list[str], capsys: Any
) -> None:
    if options[0] == "launcher=joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert reproduce.main(["test.figure3", "grid_filter=fedavg", *ENGINE, "folder=sequential"]) == 0
    capsys.readouterr()
    assert reproduce.main(["test.figure3", *ENGINE, *options]) == 1
    output = capsys.readouterr()
    assert "3 of 3 runs remain" in output.err
    assert "runs/test/lr_1e30/0 has diverged" in output.err
    assert output.err.splitlines()[-1].startswith("manyeyes: runs/test/none/0: ")
    assert "epochs" in output.err.splitlines()[-1]
    assert "1 of 1 measured" in output.out
    models = [Path(folder, "test/fedavg/0/model.safetensors").read_bytes() for folder in ("sequential", "runs")]
    assert models[0] == models[1]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_run_that_another_command_trained_in_the_meantime_is_not_a_failure(parallel: int) -> None:
    runs = list(planned_runs(FIGURE, ReproduceOptions()))

    def finish_all(text: str) -> None:  # when the first run is logged, another command has trained all
        for run in runs:
            run.folder.mkdir(parents=True, exist_ok=True)
            (run.folder / "model.safetensors").touch()

    assert run_all(runs, ReproduceOptions(parallel=parallel), finish_all) == []
    assert sorted(Path("runs").rglob("metrics.jsonl")) == []


def test_a_damaged_run_is_named(capsys: Any) -> None:
    for name in ("all", "fedavg"):
        folder = Path(f"runs/test/{name}/0")
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\nx\n')
        (folder / "model.safetensors").touch()
    assert reproduce.main(["test.figure1", "--plan"]) == 0
    assert "0 of 2 runs remain" in capsys.readouterr().out
    assert reproduce.main(["test.figure1", "--show"]) == 1
    output = capsys.readouterr()
    problem = "is damaged (line 2 of metrics.jsonl is damaged and ignored): remove it to run it again."
    assert output.err.splitlines() == [f"manyeyes: runs/test/{name}/0 {problem}" for name in ("all", "fedavg")]
    assert "0 of 2 measured" in output.out


def test_a_killed_process_of_joblib_does_not_stop_the_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list(planned_runs(TABLE, ReproduceOptions()))
    assert len(runs) == 8
    batches: list[list[int]] = []

    def launch(launcher: str, options: list[str], jobs: list[list[str]], log_dir: Path) -> list[str]:
        """Finish the first run; the next is killed, and with it the third; the others are not started."""
        batch = [next(index for index, run in enumerate(runs) if run.overrides() == job) for job in jobs]
        batches.append(batch)
        for index in batch[:3]:
            runs[index].folder.mkdir(parents=True, exist_ok=True)
        finished = batch[:1] if batch != [1] else []  # the second run is also killed when it is alone
        for index in finished:
            (runs[index].folder / "model.safetensors").touch()
        if finished != batch:
            raise LauncherError("joblib: a worker process was terminated")
        return [""]

    monkeypatch.setattr("manyeyes.papers.runner.launch", launch)
    failures = run_all(runs, ReproduceOptions(launcher="joblib"), lambda text: None)
    assert failures == [f"{runs[1].folder}: joblib: a worker process was terminated"]
    assert batches == [[0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7], [6, 7], [1], [2], [4], [5], [7]]


@pytest.mark.slow
def test_each_line_of_the_log_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("sys.stderr.write", written.append)
    assert reproduce.main(["test.figure3", "grid_filter=none", *ENGINE]) == 1  # the run is rejected, and quickly
    assert written[1] == "1 of 1: runs/test/none/0\n", "parallel runs would write into each other's lines"


def test_an_unknown_launcher_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="launcher=nothing is not available"):
        reproduce.main(["test.figure1", "launcher=nothing", *ENGINE])
