"""A run folder is written by one process at a time, for one run, with all that is needed to repeat it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from manyeyes.algorithms import ditto
from manyeyes.core.population import Population
from manyeyes.core.state import ClientState, DivergenceError, ServerState
from manyeyes.training import checkpoint, run_folder
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.run_files import Event
from manyeyes.training.run_folder import Recorder, RunFolder, read_events, unused_path
from tests.training.small_runs import run

CPU = torch.device("cpu")
STATE = ServerState(1, torch.rand(3), {}, None)
HOLD_FOLDER = """
import sys
from pathlib import Path
from manyeyes.training.run_folder import RunFolder
with RunFolder(Path("run")):
    print("locked", flush=True)
    sys.stdin.read()
"""
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def holder(spawn: Spawn) -> subprocess.Popen[str]:
    """Return another process that has locked the folder `run`."""
    process = spawn("-c", HOLD_FOLDER, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def fail(path: Path, error: BaseException) -> None:
    """Begin a run that ends with this error."""

    def run() -> None:
        with RunFolder(path) as folder:
            folder.create()
            raise error

    with pytest.raises(type(error)):
        run()


def make_clients(path: Path | None = None, states: dict[int, ClientState] | None = None) -> ClientStateStore:
    clients = ClientStateStore(path, CPU, 2**20)
    clients.update(states or {})
    return clients


@pytest.mark.slow
def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(ValueError, match=f"run is in use by process {holder.pid}: wait for it, or choose another"):
        RunFolder(tmp_path / "run").__enter__()


@pytest.mark.slow
def test_a_folder_can_be_opened_after_its_process_was_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    with RunFolder(tmp_path / "run"):
        pass


def test_a_folder_can_be_opened_again_after_use(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path / "run"):
            pass


def test_a_folder_that_is_open_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run"), pytest.raises(ValueError, match="is in use by process"):
        RunFolder(tmp_path / "run").__enter__()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"run folder .*file/run cannot be created: Not a directory\.$"):
        RunFolder(tmp_path / "file" / "run").__enter__()


def test_a_full_disk_when_a_run_is_continued_says_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ServerState(7, torch.zeros(3), {}, None)
    checkpoint.save(
        tmp_path / "checkpoint.safetensors",
        checkpoint.Checkpoint(state, torch.zeros(0, 4, dtype=torch.int64), 0, "run"),
    )

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / ".lock"))

    monkeypatch.setattr(run_folder, "acquire_lock", fail)
    with pytest.raises(
        ValueError, match=r"cannot be written: No space .* saved up to round 7: free about 1 MB and con"
    ):
        RunFolder(tmp_path).__enter__()


def test_an_error_after_the_first_checkpoint_got_its_name_says_that_round_0_is_saved(tmp_path: Path) -> None:
    state = ServerState(0, torch.zeros(3), {}, None)
    folder = RunFolder(tmp_path / "run")

    def save_and_fail() -> None:
        with folder:
            saved = checkpoint.Checkpoint(state, torch.zeros(0, 4, dtype=torch.int64), 0, "run")
            checkpoint.save(folder.checkpoint, saved)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.path))  # as of the sync of the folder

    with pytest.raises(OSError, match="the run is saved up to round 0: free about 1 MB and continue with"):
        save_and_fail()


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "model.safetensors"])
def test_a_folder_that_has_a_run_is_refused_and_not_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="already has a run: continue it with resume="), RunFolder(tmp_path) as folder:
        folder.create()
    assert {path.name for path in tmp_path.iterdir()} == {name, ".lock"}


def test_a_folder_whose_run_ended_before_its_first_checkpoint_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n')
    with RunFolder(tmp_path) as folder:
        folder.create()


def test_settings_and_environment_are_written(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.create({"engine": "reference"})
        folder.write_config({"rounds": 3, "algorithm": {"lr": 0.1}})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"rounds": 3, "algorithm": {"lr": 0.1}}
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["engine"] == "reference"
    assert environment.keys() >= {"python", "platform", "cpus", "processor", "threads", "gpu", "revision", "command"}


def test_a_folder_without_a_checkpoint_cannot_be_continued(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder, pytest.raises(ValueError, match="has no checkpoint to continue from"):
        folder.load(CPU, "")


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "population.json").write_text("{}")
    with RunFolder(tmp_path) as folder, pytest.raises(ValueError, match="is a run of an earlier version of manyeyes"):
        folder.load(CPU, "")


def test_two_runs_that_begin_in_the_same_second_get_different_folders(tmp_path: Path) -> None:
    assert unused_path(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    assert unused_path(tmp_path / "run") == tmp_path / "run-2"


def test_the_message_of_a_failure_stays_until_the_run_is_started_again(tmp_path: Path) -> None:
    fail(tmp_path, OSError(28, "No space left on device"))
    assert (tmp_path / "failed.txt").read_text() == "[Errno 28] No space left on device\n"
    with RunFolder(tmp_path) as folder:
        folder.create()
        assert not (tmp_path / "failed.txt").exists()


def test_an_error_without_a_message_is_named_by_its_type(tmp_path: Path) -> None:
    fail(tmp_path, MemoryError())
    assert (tmp_path / "failed.txt").read_text() == "MemoryError\n"


def test_a_divergence_is_not_a_failure(tmp_path: Path) -> None:
    fail(tmp_path, DivergenceError("the loss is not finite"))
    assert (tmp_path / "diverged.txt").read_text() == "the loss is not finite\n"
    assert not (tmp_path / "failed.txt").exists()


def test_an_interrupt_is_not_a_failure(tmp_path: Path) -> None:
    fail(tmp_path, KeyboardInterrupt())
    assert not (tmp_path / "failed.txt").exists()


def test_a_recorder_without_a_folder_keeps_events_and_writes_nothing() -> None:
    recorder = Recorder()
    recorder.write({"round": 0})
    recorder.save(STATE, make_clients(), {})
    recorder.close()
    assert (recorder.events, recorder.path) == ([{"round": 0}], None)


def test_events_are_read_back_in_order(tmp_path: Path) -> None:
    recorder = Recorder(RunFolder(tmp_path))
    events: list[Event] = [{"round": 0, "accuracy": 0.1}, {"round": 1, "rejected_clients": ["ann"]}]
    for event in events:
        recorder.write(event)
    recorder.close()
    assert read_events(tmp_path / "metrics.jsonl") == events


def test_a_line_that_a_crash_cut_off_is_not_an_event(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"round": 0}\n{"rou')
    assert read_events(tmp_path / "m") == [{"round": 0}]


def test_a_checkpoint_refers_to_the_events_and_states_before_it(tmp_path: Path) -> None:
    recorder = Recorder(RunFolder(tmp_path), "abc")
    recorder.write({"round": 0})
    recorder.save(STATE, make_clients(tmp_path / "clients.bin", {5: {"personal_weights": torch.rand(2)}}), {})
    recorder.write({"round": 1})
    recorder.close()
    saved = checkpoint.load(tmp_path / "checkpoint.safetensors", CPU)
    assert saved.metrics_bytes == len('{"round": 0}\n')
    assert saved.fingerprint == "abc"
    assert saved.clients[:, 0].tolist() == [5]


def test_a_continued_run_drops_the_events_after_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = Recorder(folder)
    first.write({"round": 0})
    first.save(STATE, make_clients(), {})
    first.write({"round": 1})
    first.close()
    with folder.metrics.open("a") as file:
        file.write('{"rou')
    second = Recorder(folder, "", checkpoint.load(folder.checkpoint, CPU))
    assert second.events == [{"round": 0}]
    second.write({"round": 1, "is_repeated": True})
    second.close()
    assert second.events == read_events(folder.metrics) == [{"round": 0}, {"round": 1, "is_repeated": True}]


def test_a_metrics_file_shorter_than_its_checkpoint_says_is_refused_and_not_changed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder)
    recorder.write({"round": 0})
    recorder.save(STATE, make_clients(), {})
    recorder.close()
    folder.metrics.write_text("{}\n")
    with pytest.raises(ValueError, match="is shorter than its checkpoint says"):
        Recorder(folder, "", checkpoint.load(folder.checkpoint, CPU))
    assert folder.metrics.read_text() == "{}\n"


def test_a_continued_run_that_saves_before_it_writes_an_event_can_be_continued_again(tmp_path: Path) -> None:
    """As a run does that diverges in the first round after it was resumed."""
    folder = RunFolder(tmp_path)
    first = Recorder(folder)
    first.write({"round": 0})
    first.save(STATE, make_clients(), {})
    first.write({"round": 1})  # is dropped
    first.close()
    second = Recorder(folder, "", checkpoint.load(folder.checkpoint, CPU))
    second.save(STATE, make_clients(), {})
    second.close()
    third = Recorder(folder, "", checkpoint.load(folder.checkpoint, CPU))
    third.close()
    assert third.events == [{"round": 0}]


@pytest.mark.slow
def test_only_the_owner_can_read_what_a_run_writes(tmp_path: Path, population: Population) -> None:
    folder = tmp_path / "runs" / "mine"
    run(population, ditto(cohort_size=3), folder, rounds=2, trackers=["tensorboard"])
    paths = [folder, *folder.rglob("*")]
    assert {"clients.bin", "checkpoint.safetensors", "tensorboard"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_other_files_of_the_process_can_be_read_by_others_after_the_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with RunFolder(tmp_path / "run"):
            pass
        (tmp_path / "other").touch()
        assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
