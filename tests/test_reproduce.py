"""`manyeyes reproduce`: what is missing is run, what is done is not, and the paper's numbers stand beside ours."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyeyes.papers import ITEMS, Item, Number, Row, Run, Store
from manyeyes.papers.launching import Broken
from manyeyes.papers.measure import AfterRounds, Final, Relative
from manyeyes.papers.plan import How, jobs
from manyeyes.papers.running import Means, run_all, said
from manyeyes.papers.statistic import Count
from manyeyes.reproduce import reproduce

WORLD = ("data=world", "data.users=40", "data.photos=12", "model=linear", "algorithm.batch=6", "evaluate_every=1")
HERE = ("engine=reference", "engine.device=cpu", "engine.threads=1")


def small(name: str, *more: str) -> Run:
    return Run(name, (*WORLD, "algorithm.cohort=4", "rounds=2", *more), None)


BOUND = small("all", "algorithm=centralised")
PRINTED = Number(50.0, "%", "Table 1, row one", spread=1.0)
ONE = Row("one", (small("fedavg"),), {AfterRounds("accuracy", 1): PRINTED, Relative(): None}, BOUND)
GRID = Row("grid", tuple(small(f"lr_{lr}", f"algorithm.lr={lr}") for lr in ("0.01", "1e30")), {Final("accuracy"): None})
TABLE = Item("test", "table1", "A table", (ONE, GRID), "All is well.", "As it is.", seeds=2)
FIGURE = Item("test", "figure1", "A figure", (ONE,), "")
MISSING = Row(
    "gone", (Run("gone", ("data=flair", "data.path=data/flair", "rounds=1"), Store("data/flair", ("flair",))),)
)
BROKEN = Item("test", "table2", "Half of a table", (MISSING, ONE), "")
MIXED = Row(
    "mixed",
    (small("fedavg"), small("lr_1e30", "algorithm.lr=1e30"), small("none", "algorithm.epochs=0")),
    {Final("accuracy"): None},
)
BESIDE = Item("test", "figure3", "Side by side", (MIXED,), "")
DATA = Item(
    "test",
    "figure2",
    "Data",
    (
        Row(
            "flair",
            stores=(Store("data/flair", ("flair", "--raw", "raw")),),
            expected={Count("users"): Number(51414, "users", "")},
        ),
    ),
    "",
)


@pytest.fixture(autouse=True)
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for one in (TABLE, FIGURE, BROKEN, BESIDE, DATA):
        monkeypatch.setitem(ITEMS, one.key, one)


def accuracy(folder: str, round: int = -1) -> float:
    lines = Path("runs", folder, "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[round])["accuracy"])


def test_all_runs_are_made_and_compared(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=one", *HERE]) == 0
    assert sorted(str(p.parent) for p in Path("runs").rglob("model.safetensors")) == [
        f"runs/test/{name}/{seed}" for name in ("all", "fedavg") for seed in (0, 1)
    ]
    first, second = (100 * accuracy(f"test/fedavg/{seed}", 1) for seed in (0, 1))
    mean, deviation = (first + second) / 2, abs(first - second) / 2**0.5
    report = Path("runs/test/table1.md").read_text()
    apart, verdict = f"{mean - 50:+,.3g}", "yes" if abs(mean - 50) <= 2 else "no"
    assert (
        f"| one | accuracy after 1 rounds | 50 ± 1 % | {mean:,.4g} ± {deviation:.2g} | {apart} | {verdict} |" in report
    )
    assert "Within: at most 2 of the paper's standard deviations" in report
    relative = [accuracy(f"test/fedavg/{seed}") / accuracy(f"test/all/{seed}") for seed in (0, 1)]
    assert f"| one | relative accuracy |  | {sum(relative) / 2:,.4g} ± " in report
    assert "2 of 2 measured" in capsys.readouterr().out


def test_what_was_evaluated_at_another_time_says_so_in_every_file_and_is_not_compared() -> None:
    assert reproduce(["test.table1", "row=one", "seeds=1", "evaluate_every=0", *HERE]) == 0
    began, said = 100 * accuracy("test/fedavg/0", 0), "measured at round 0 of 1"
    cell = f"{began:,.4g} ({said}, too far to compare)"
    assert f"| one | accuracy after 1 rounds | 50 ± 1 % | {cell} |  |  |" in Path("runs/test/table1.md").read_text()
    assert cell in Path("runs/test/table1.html").read_text()
    with Path("runs/test/table1.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["evaluated"], first["difference"], first["within"]) == (said, "", "")
    assert float(first["measured"]) == pytest.approx(began)
    assert second["evaluated"] == "", "the last round is evaluated"
    assert float(second["measured"]) == pytest.approx(accuracy("test/fedavg/0") / accuracy("test/all/0"))


def test_what_is_done_is_not_run_again_and_is_shared_between_items(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=one", "seeds=1", *HERE]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")}
    capsys.readouterr()
    assert reproduce(["test.figure1", *HERE]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")} == before
    assert capsys.readouterr().err == ""


def test_what_was_stopped_goes_on_and_ends_the_same() -> None:
    assert reproduce(["test.figure1", *HERE]) == 0
    model = Path("runs/test/fedavg/0/model.safetensors")
    whole = model.read_bytes()
    model.unlink()
    assert reproduce(["test.figure1", *HERE]) == 0
    assert model.read_bytes() == whole


def test_a_run_that_fails_is_named_and_stops_no_other(capsys: Any) -> None:
    assert reproduce(["test.table2", *HERE]) == 1
    said = capsys.readouterr()
    make = "manyeyes data prepare flair --out data/flair"
    expected = f"manyeyes: runs/test/gone/0: data/flair is not there; make it with: {make}"
    assert expected in said.err
    assert "2 of 2 measured" in said.out


def test_of_several_runs_the_best_that_finished_counts() -> None:
    assert reproduce(["test.table1", "row=grid", "seeds=1", *HERE]) == 0  # a rate of 1e30 diverges
    best = 100 * accuracy("test/lr_0.01/0") / 100
    told = Path("runs/test/table1.md").read_text()
    assert f"| grid | accuracy |  | {best:,.4g} (lr_0.01) |" in told
    assert "Diverged: 1 of 2 runs; a row shows the best of its others." in told


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
    assert said(RuntimeError("CUDA out of memory. Tried to allocate")).startswith("the GPU has too little memory")


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


def test_a_folder_may_have_any_name() -> None:
    place = 'my "runs" (1), all=here'
    assert reproduce(["test.figure1", "parallel=2", f"folder={place}", *HERE]) == 0
    assert Path(place, "test", "fedavg", "0", "model.safetensors").exists()


def test_what_is_done_is_compared_without_a_run(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=grid", "grid=lr_0.01", "seeds=1", *HERE]) == 0
    capsys.readouterr()
    assert reproduce(["test.table1", "row=grid", "seeds=1", "--show"]) == 0
    report = Path("runs/test/table1.md").read_text()
    assert "Done so far: 1 of 2 runs; a row shows the best of its own." in report
    assert f"| grid | accuracy |  | {accuracy('test/lr_0.01/0'):,.4g} (lr_0.01) |" in report
    assert not Path("runs/test/lr_1e30").exists()
    assert capsys.readouterr().err == ""


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


def test_a_part_of_a_grid_is_chosen_by_how_names_end() -> None:
    assert reproduce(["test.table1", "row=grid", "grid=lr_0.*", "seeds=1", *HERE]) == 0
    assert [path.name for path in Path("runs/test").iterdir() if path.is_dir()] == ["lr_0.01"]
    assert "Of each row's grid only the runs named like lr_0.*." in Path("runs/test/table1.md").read_text()


def test_a_run_is_cut_at_so_many_rounds_and_says_so() -> None:
    assert reproduce(["test.figure1", "rounds=1", *HERE]) == 0
    folder = Path("runs/test/cut_at_1_rounds")
    assert [len((folder / name / "0/metrics.jsonl").read_text().splitlines()) for name in ("all", "fedavg")] == [2, 2]
    report = Path("runs/test/figure1_cut_at_1_rounds.md").read_text()
    assert "Cut at 1 rounds of 2." in report
    assert "| 50 ± 1 % |" in report
    assert report.count("|  |  |\n") == 2, "nothing is compared"


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
    every = list(jobs(FIGURE, How()))

    def say(text: str) -> None:
        for job in every:  # when the first is named, all are done elsewhere
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "model.safetensors").touch()

    assert run_all(every, Means(parallel=parallel), say) == []
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
    every = list(jobs(TABLE, How()))
    assert len(every) == 8
    given: list[list[Path]] = []

    def launch(launcher: str, options: list[str], words: list[list[str]], place: Path) -> list[str]:
        """One job is done, the next is killed, and with it the one beside it; those behind are not begun."""
        batch = [next(job.folder for job in every if job.words() == each) for each in words]
        given.append(batch)
        for folder in batch[:3]:
            folder.mkdir(parents=True, exist_ok=True)
        done = batch[:1] if batch != [every[1].folder] else []  # the second is killed when it is alone, too
        for folder in done:
            (folder / "model.safetensors").touch()
        if done != batch:
            raise Broken("joblib: a worker process was terminated")
        return [""]

    monkeypatch.setattr("manyeyes.papers.running.launch", launch)
    told = run_all(every, Means(launcher="joblib"), lambda text: None)
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


def test_what_is_not_the_papers_run_says_so_everywhere(capsys: Any) -> None:
    assert reproduce(["test.table1", "row=one", "scale=0.5", "seeds=1", *HERE]) == 0
    assert Path("runs/test/scaled_by_0.5/fedavg/0/model.safetensors").exists()
    report = Path("runs/test/table1_scaled_by_0.5.md").read_text()
    assert "**These runs are scaled by 0.5, not the paper's: nothing is compared.**" in report
    assert "measured (scaled by 0.5)" in report
    assert f"    manyeyes reproduce test.table1 row=one scale=0.5 seeds=1 {' '.join(HERE)}\n" in report
    page = Path("runs/test/table1_scaled_by_0.5.html").read_text()
    assert f"{' '.join(HERE)} folder=runs/test/scaled_by_0.5/fedavg/0" in page, "the commands of the runs, as they were"
    assert "(scaled by 0.5)" in capsys.readouterr().out


def test_data_says_where_the_stores_are(capsys: Any) -> None:
    assert reproduce(["flair.table1", "row=FL-F-17", "seeds=1", "data=elsewhere", "--plan"]) == 0
    out = capsys.readouterr().out
    assert "make  manyeyes data prepare flair --raw raw/flair --size 256 --out elsewhere/flair\n" in out
    assert " data.path=elsewhere/flair " in out


def test_data_is_the_one_store_that_is_needed(capsys: Any) -> None:
    Path("mine").mkdir()
    Path("mine/meta.json").touch()
    assert reproduce(["flair.table1", "row=FL-F-17", "seeds=1", "data=mine", "--plan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("have  ")
    assert " data.path=mine " in out
    with pytest.raises(ValueError, match=r"data is one store and hsu2020\.figure4 needs 11: give the"):
        reproduce(["hsu2020.figure4", "data=mine", "--plan"])


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


def test_data_is_shown_and_counted_on_a_stand_in(capsys: Any) -> None:
    assert reproduce(["test.figure2", "stand_in=true", "scale=0.001"]) == 0
    report = next(Path("runs/test").glob("figure2*.md")).read_text()
    assert "| flair | users | 51,414 users | 51 |" in report
    assert "Stand-in: data/flair is replaced by a procedural world. Scaled by 0.001: users 51414 to 51." in report
    assert "on stand-ins" in report


def test_data_that_is_missing_says_how_to_make_it(capsys: Any) -> None:
    assert reproduce(["test.figure2"]) == 1
    assert "manyeyes: flair: data/flair is not there; make it with: " in capsys.readouterr().err


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
    assert not [path for path in Path().rglob("*") if path.is_file()]


def test_a_folder_that_cannot_hold_runs_is_refused_before_any_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.reproduce.run_all", lambda *_: pytest.fail("a run was begun"))
    Path("file").touch()
    with pytest.raises(ValueError, match=r"file/test cannot hold runs \(Not a directory\): choose another by"):
        reproduce(["test.figure1", "folder=file"])
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match=r"runs/test cannot hold runs \(it may not be written to\)"):
        reproduce(["test.figure1"])
