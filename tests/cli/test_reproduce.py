"""`manyeyes reproduce`: what is missing is run, what is done is not, and the paper's numbers stand beside ours."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli.reproduce import reproduce
from tests.small_exhibits import HERE, accuracy

pytestmark = pytest.mark.usefixtures("papers")


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


def test_of_several_runs_the_best_that_finished_counts() -> None:
    assert reproduce(["test.table1", "row=grid", "seeds=1", *HERE]) == 0  # a rate of 1e30 diverges
    best = 100 * accuracy("test/lr_0.01/0") / 100
    told = Path("runs/test/table1.md").read_text()
    assert f"| grid | accuracy |  | {best:,.4g} (lr_0.01) |" in told
    assert "Diverged: 1 of 2 runs; a row shows the best of its others." in told


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


def test_data_is_shown_and_counted_on_a_stand_in(capsys: Any) -> None:
    assert reproduce(["test.figure2", "stand_in=true", "scale=0.001"]) == 0
    report = next(Path("runs/test").glob("figure2*.md")).read_text()
    assert "| flair | users | 51,414 users | 51 |" in report
    assert "Stand-in: data/flair is replaced by a procedural world. Scaled by 0.001: users 51414 to 51." in report
    assert "on stand-ins" in report


def test_data_that_is_missing_says_how_to_make_it(capsys: Any) -> None:
    assert reproduce(["test.figure2"]) == 1
    assert "manyeyes: flair: data/flair is not there; make it with: " in capsys.readouterr().err
