"""`manyeyes reproduce`: what it lists, plans and rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli import reproduce
from manyeyes.papers import EXHIBITS

pytestmark = pytest.mark.usefixtures("papers")


def test_the_time_of_runs_is_estimated_from_their_rounds(capsys: Any) -> None:
    folder = Path("runs/test/fedavg/0")
    folder.mkdir(parents=True)
    rounds = [{"round": 0}, *({"round": n, "seconds": 9 if n < 4 else 60} for n in range(1, 7))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rounds))
    assert reproduce.main(["test.table1", "rows=one", "--plan"]) == 0  # one seed has rounds
    assert capsys.readouterr().out.splitlines()[-1] == (
        "4 of 4 runs remain: about 2.0 min of training for 2 of them, plus evaluation; "
        "the time of 2 is unknown until similar runs have trained"
    )


def test_a_plan_trains_nothing(capsys: Any) -> None:
    assert reproduce.main(["flair.table1", "rows=FL-F-17", "seeds=1", "--plan"]) == 0
    prepare, status, command, estimate = capsys.readouterr().out.splitlines()
    assert prepare == "make  manyeyes data prepare flair --raw raw/flair --size 256 --out data/flair"
    assert status == "empty    runs/flair/FL-F-17/0  0/5000 rounds"
    assert estimate == "1 of 1 runs remain; the time of 1 is unknown until similar runs have trained"
    assert command.split()[:3] == ["manyeyes", "run", "data=flair"]
    assert list(Path().iterdir()) == []


def test_a_paper_stands_for_all_of_its_tables_and_figures(capsys: Any) -> None:
    assert reproduce.main(["fedper", "seeds=1", "--plan"]) == 0
    runs = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("empty")}
    recipes = [run for exhibit in EXHIBITS.values() if exhibit.paper == "fedper" for run in exhibit.runs]
    assert runs == {f"runs/fedper/{run.name}/0" for run in recipes}
    assert {run.split("-")[0] for run in runs} == {"runs/fedper/mobilenet_v1", "runs/fedper/resnet34"}


def test_the_list_names_every_exhibit(capsys: Any) -> None:
    assert reproduce.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert [key for key in EXHIBITS if key not in out] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.table1"], "Unknown table or figure 'nothing.table1': choose flair.table1, "),
        (["test.table1", "--list"], "--list stands alone"),
        (["test.table1", "rows=two"], "test.table1 has no row like two: it has one; grid"),
        (["test.table1", "rows=one", "rows=two"], "test.table1 has no row like two: it has one; grid"),
        (["test.table1", "scale=3"], "scale is 3.0: .* at most 1"),
        (["test.table1", "scale=x"], "scale is 'x': set it to a number"),
        (["test.table1", "seeds=0.5"], "seeds is '0.5': set it to a whole number"),
        (["test.table1", "rows="], "rows has no value: write rows="),
        (["test.table1", "evaluate_every=-1"], "evaluate_every is -1: .* at least 0"),
        (["test.table1", "evaluate_every=x"], "evaluate_every is 'x': it must be a whole number"),
        (["test.table1", "engine=warp"], "Unknown engine 'warp': choose auto"),
        (["test.table1", "trackers=[paper]", "parallel=2"], "Unknown trackers 'paper'"),
        (["test.table1", "algorithm.lr=1"], "algorithm.lr cannot be set, because the paper decides it"),
        (["test.table1", "--fast"], r"unrecognized arguments: --fast \(see manyeyes reproduce --help\)"),
        (["test.table1", "flair.table1"], "Name one table or figure"),
        (["test.table1", "synthetic=1"], "synthetic is '1': set it to true or false"),
        (["test.table1", "retry_diverged=1"], "retry_diverged is '1': set it to true or false"),
        (["test.table1", "parallel=0"], "parallel is 0: .* at least 1"),
        (["test.table1", "rounds=-1"], "rounds is -1: .* at least 0"),
        (
            ["test.table1", "rows=grid", "grid_filter=lr_7"],
            r"test.table1 has no run like lr_7: it has lr_0\.01, lr_1e30",
        ),
        (
            ["test.table1", "grid_filter=lr_0.01", "grid_filter=lr_7"],
            r"test.table1 has no run like lr_7: it has lr_0\.01, lr_1e30",
        ),
        (["test.figure1", "grid_filter=lr_7"], "test.figure1 has no run like lr_7: its rows have one run each"),
        (["test.table1", "launcher.n_jobs=2"], r"launcher.\* needs a launcher"),
        (["test.table1", "launcher=submitit_slurm", "parallel=2"], "parallel=2 is for this machine"),
    ],
)
def test_a_wrong_argument_is_rejected_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reproduce.main(arguments)
    assert not list(Path().iterdir())


def test_a_folder_that_cannot_hold_runs_is_rejected_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.cli.reproduce.run_all", lambda *_: pytest.fail("a run was started"))
    Path("file").touch()
    with pytest.raises(ValueError, match=r"file/test cannot hold runs \(.*/file is a file\): choose another folder"):
        reproduce.main(["test.figure1", "folder=file"])
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root can write anywhere
    with pytest.raises(ValueError, match=r"runs/test cannot hold runs \(.* is not writable\)"):
        reproduce.main(["test.figure1"])
