"""`manyeyes reproduce`: what it lists, plans and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli.reproduce import reproduce
from manyeyes.papers import ITEMS

pytestmark = pytest.mark.usefixtures("papers")


def test_how_long_it_takes_is_told_from_rounds_that_were_played(capsys: Any) -> None:
    folder = Path("runs/test/fedavg/0")
    folder.mkdir(parents=True)
    rounds = [{"round": 0}, *({"round": n, "seconds": 9 if n < 4 else 60} for n in range(1, 7))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rounds))
    assert reproduce(["test.table1", "row=one", "--plan"]) == 0  # two seeds of fedavg, one of 6 of its 2 rounds
    assert capsys.readouterr().out.splitlines()[-1] == (
        "4 of 4 runs are to be done: about 2 minutes of training for 2 of them, evaluation apart; how long 2 take is "
        "told when rounds like theirs have been played"
    )


def test_a_plan_runs_nothing(capsys: Any) -> None:
    assert reproduce(["flair.table1", "row=FL-F-17", "seeds=1", "--plan"]) == 0
    make, state, command, long = capsys.readouterr().out.splitlines()
    assert make == "make  manyeyes data prepare flair --raw raw/flair --size 256 --out data/flair"
    assert state == "missing  runs/flair/FL-F-17/0  0/5000 rounds"
    assert long == "1 of 1 runs are to be done; how long 1 take is told when rounds like theirs have been played"
    assert command.split()[:3] == ["manyeyes", "run", "data=flair"]
    assert list(Path().iterdir()) == []


def test_the_list_names_every_item(capsys: Any) -> None:
    assert reproduce(["--list"]) == 0
    out = capsys.readouterr().out
    assert [key for key in ITEMS if key not in out] == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nothing.table1"], "there is no 'nothing.table1' in the papers"),
        (["test.table1", "--list"], "--list names every table and figure: leave out the other words"),
        (["test.table1", "row=two"], "test.table1 has no row like two: it has one; grid"),
        (["test.table1", "row=one", "row=two"], "test.table1 has no row like two: it has one; grid"),
        (["test.table1", "scale=3"], "scale is 3.0"),
        (["test.table1", "scale=x"], "scale is 'x': it must be a number"),
        (["test.table1", "seeds=0.5"], "seeds is '0.5': it must be a whole number"),
        (["test.table1", "row="], "row has no value: write row="),
        (["test.table1", "evaluate_every=-1"], "evaluate_every is -1: it must be at least 0"),
        (["test.table1", "evaluate_every=x"], "evaluate_every is 'x': it must be a whole number"),
        (["test.table1", "engine=warp"], "engine 'warp' is unknown: choose auto"),
        (["test.table1", "track.to=[paper]", "parallel=2"], "tracker 'paper' is unknown"),
        (["test.table1", "algorithm.lr=1"], "algorithm.lr is the paper's to set"),
        (["test.table1", "--fast"], "--fast is no option"),
        (["test.table1", "flair.table1"], "name one table or figure"),
        (["test.table1", "stand_in=1"], "stand_in is '1'"),
        (["test.table1", "again=1"], "again is '1'"),
        (["test.table1", "parallel=0"], "parallel is 0: it must be at least 1"),
        (["test.table1", "rounds=-1"], "rounds is -1: it must be at least 1"),
        (["test.table1", "row=grid", "grid=lr_7"], r"test.table1 has no run like lr_7: it has lr_0\.01, lr_1e30"),
        (["test.table1", "grid=lr_0.01", "grid=lr_7"], r"test.table1 has no run like lr_7: it has lr_0\.01, lr_1e30"),
        (["test.figure1", "grid=lr_7"], "test.figure1 has no run like lr_7: its rows have one run each"),
        (["test.table1", "launcher.n_jobs=2"], r"launcher.\* are settings of a launcher"),
        (["test.table1", "launcher=submitit_slurm", "parallel=2"], "parallel is for this machine"),
    ],
)
def test_a_wrong_word_is_refused_by_name(words: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        reproduce(words)
    assert not list(Path().iterdir())


def test_a_folder_that_cannot_hold_runs_is_refused_before_any_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.cli.reproduce.run_all", lambda *_: pytest.fail("a run was begun"))
    Path("file").touch()
    with pytest.raises(ValueError, match=r"file/test cannot hold runs \(.*/file is a file\): choose another by"):
        reproduce(["test.figure1", "folder=file"])
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match=r"runs/test cannot hold runs \(.* may not be written to\)"):
        reproduce(["test.figure1"])
