"""Events: lines on disk, and those who follow a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from manyeyes.training.run_folder import MetricsFile, read_events, scalars
from manyeyes.training.trackers import TRACKERS, TensorBoard


def test_events_come_back_in_order(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m")
    events = [{"round": 0, "accuracy": 0.1}, {"round": 1, "left_out": ["ann"]}]
    for event in events:
        file.write(event)
    file.close()
    assert read_events(tmp_path / "m") == events


def test_sync_says_how_many_bytes_are_on_disk(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m")
    file.write({"round": 0})
    assert file.sync() == len('{"round": 0}\n')
    file.close()


def test_a_line_cut_by_a_crash_is_not_an_event(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"round": 0}\n{"rou')
    assert read_events(tmp_path / "m") == [{"round": 0}]


def test_what_follows_the_kept_bytes_is_cut(tmp_path: Path) -> None:
    first = '{"round": 0}\n'
    (tmp_path / "m").write_text(first + '{"round": 1}\n{"rou')
    file = MetricsFile(tmp_path / "m", len(first))
    file.write({"round": 1, "again": True})
    file.close()
    assert read_events(tmp_path / "m") == [{"round": 0}, {"round": 1, "again": True}]


def test_a_file_shorter_than_its_checkpoint_says_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"round": 0}\n')
    with pytest.raises(ValueError, match="is shorter than its checkpoint says"):
        MetricsFile(tmp_path / "m", 100)
    assert (tmp_path / "m").read_text() == '{"round": 0}\n'


def test_only_numbers_are_drawn() -> None:
    assert scalars({"round": 3, "loss": 0.5, "clients": 4, "left_out": ["ann"]}) == {"loss": 0.5, "clients": 4}


def drawn(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def test_tensorboard_holds_the_curve(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, 1)
    for round, value in enumerate((0.25, 0.5, 0.75)):
        board.write({"round": round, "accuracy": value})
    board.close()
    assert drawn(tmp_path, "accuracy") == [(0, 0.25), (1, 0.5), (2, 0.75)]


def test_tensorboard_forgets_rounds_that_are_played_again(tmp_path: Path) -> None:
    before = TensorBoard(tmp_path, 1)
    for round in range(4):
        before.write({"round": round, "accuracy": 0.25})
    before.close()
    after = TensorBoard(tmp_path, 2)  # the checkpoint was of round 1
    after.write({"round": 2, "accuracy": 0.5})
    after.close()
    assert drawn(tmp_path, "accuracy") == [(0, 0.25), (1, 0.25), (2, 0.5)]


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_tracker_that_is_not_installed_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=r"is not installed: pip install 'manyeyes\[track\]'$"):
        TRACKERS[name](tmp_path, 1)
