"""`manyeyes reproduce`: missing runs are trained, finished ones are not, and numbers are compared with the paper's."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli import reproduce
from manyeyes.papers.metric import RunOutcome
from tests.small_exhibits import ENGINE, read_accuracy

pytestmark = pytest.mark.usefixtures("papers")


@pytest.fixture
def unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs on synthetic images be compared, as those on a paper's images are."""
    read = RunOutcome.from_record
    monkeypatch.setattr(RunOutcome, "from_record", staticmethod(lambda record: replace(read(record), caveats=())))


@pytest.mark.slow
@pytest.mark.usefixtures("unmarked")
def test_all_runs_are_trained_and_compared(capsys: Any) -> None:
    assert reproduce.main(["test.table1", "rows=one", *ENGINE]) == 0
    assert sorted(str(path.parent) for path in Path("runs").rglob("model.safetensors")) == [
        f"runs/test/{name}/{seed}" for name in ("all", "fedavg") for seed in (0, 1)
    ]
    first, second = (100 * read_accuracy(f"test/fedavg/{seed}", 1) for seed in (0, 1))
    mean, deviation = (first + second) / 2, abs(first - second) / 2**0.5
    report = Path("runs/test/table1.md").read_text()
    difference, verdict = f"{mean - 50:+,.3g}", "yes" if abs(mean - 50) <= 2 else "no"
    measured = f"{mean:,.4g} ± {deviation:.2g}"
    assert f"| one | accuracy after 1 rounds | 50 ± 1 % | {measured} | {difference} | {verdict} |" in report
    assert "Within: at most 2 of the paper's standard deviations" in report
    relative = [read_accuracy(f"test/fedavg/{seed}") / read_accuracy(f"test/all/{seed}") for seed in (0, 1)]
    assert f"| one [1] | relative accuracy |  | {sum(relative) / 2:,.4g} ± " in report
    assert "[1] Relative to a centralized accuracy of " in report
    assert "2 of 2 measured" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("unmarked")
def test_an_evaluation_at_another_round_is_named_in_every_file_and_not_compared() -> None:
    assert reproduce.main(["test.table1", "rows=one", "seeds=1", "evaluate_every=0", *ENGINE]) == 0
    accuracy, gap = 100 * read_accuracy("test/fedavg/0", 0), "measured at round 0 of 1"
    cell = f"{accuracy:,.4g} ({gap}, too far to compare)"
    assert f"| one | accuracy after 1 rounds | 50 ± 1 % | {cell} |  |  |" in Path("runs/test/table1.md").read_text()
    assert cell in Path("runs/test/table1.html").read_text()
    with Path("runs/test/table1.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["evaluated"], first["difference"], first["agrees"]) == (gap, "", "")
    assert float(first["measured"]) == pytest.approx(accuracy)
    assert second["evaluated"] == "", "the last round is evaluated"
    assert float(second["measured"]) == pytest.approx(read_accuracy("test/fedavg/0") / read_accuracy("test/all/0"))


@pytest.mark.slow
def test_finished_runs_are_not_trained_again_and_are_shared_between_exhibits(capsys: Any) -> None:
    assert reproduce.main(["test.table1", "rows=one", "seeds=1", *ENGINE]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")}
    capsys.readouterr()
    assert reproduce.main(["test.figure1", *ENGINE]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")} == before
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_ends_the_same() -> None:
    assert reproduce.main(["test.figure1", *ENGINE]) == 0
    model = Path("runs/test/fedavg/0/model.safetensors")
    before = model.read_bytes()
    model.unlink()
    assert reproduce.main(["test.figure1", *ENGINE]) == 0
    assert model.read_bytes() == before


@pytest.mark.slow
def test_the_best_run_of_a_grid_that_finished_counts() -> None:
    assert reproduce.main(["test.table1", "rows=grid", "seeds=1", *ENGINE]) == 0  # a learning rate of 1e30 diverges
    report = Path("runs/test/table1.md").read_text()
    assert f"| grid [1] | accuracy |  | {100 * read_accuracy('test/lr_0.01/0'):,.4g} % (lr_0.01) |" in report
    assert "[1] Measured on synthetic images." in report
    assert "Diverged: 1 of 2 runs; each row shows the best of the others." in report


@pytest.mark.slow
def test_a_folder_can_have_any_name() -> None:
    folder = 'my "runs" (1), all=here'
    assert reproduce.main(["test.figure1", "parallel=2", f"folder={folder}", *ENGINE]) == 0
    assert Path(folder, "test", "fedavg", "0", "model.safetensors").exists()


@pytest.mark.slow
def test_finished_runs_are_compared_without_training(capsys: Any) -> None:
    assert reproduce.main(["test.table1", "rows=grid", "grid_filter=lr_0.01", "seeds=1", *ENGINE]) == 0
    capsys.readouterr()
    assert reproduce.main(["test.table1", "rows=grid", "seeds=1", "--show"]) == 0
    report = Path("runs/test/table1.md").read_text()
    assert "Done so far: 1 of 2 runs; each row shows its best finished run." in report
    assert f"| grid [1] | accuracy |  | {100 * read_accuracy('test/lr_0.01/0'):,.4g} % (lr_0.01) |" in report
    assert "[1] Measured on synthetic images." in report
    assert not Path("runs/test/lr_1e30").exists()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_runs_of_a_grid_are_selected_by_how_their_names_end() -> None:
    assert reproduce.main(["test.table1", "rows=grid", "grid_filter=lr_0.*", "seeds=1", *ENGINE]) == 0
    assert [path.name for path in Path("runs/test").iterdir() if path.is_dir()] == ["lr_0.01"]
    assert "Only the runs of each grid whose names match lr_0.*." in Path("runs/test/table1.md").read_text()


@pytest.mark.slow
def test_a_run_that_is_cut_is_named_and_not_compared() -> None:
    assert reproduce.main(["test.figure1", "rounds=1", *ENGINE]) == 0
    folder = Path("runs/test/cut_at_1_rounds")
    assert [len((folder / name / "0/metrics.jsonl").read_text().splitlines()) for name in ("all", "fedavg")] == [2, 2]
    report = Path("runs/test/figure1_cut_at_1_rounds.md").read_text()
    assert "Cut at 1 rounds of 2." in report
    assert "| 50 ± 1 % |" in report
    assert report.count("|  |  |\n") == 2, "a number is compared"


@pytest.mark.slow
def test_scaled_runs_are_marked_everywhere(capsys: Any) -> None:
    assert reproduce.main(["test.table1", "rows=one", "scale=0.5", "seeds=1", *ENGINE]) == 0
    assert Path("runs/test/scaled_by_0.5/fedavg/0/model.safetensors").exists()
    report = Path("runs/test/table1_scaled_by_0.5.md").read_text()
    assert "**These runs are scaled by 0.5, on synthetic data, not the paper's: nothing is compared.**" in report
    assert "measured (scaled by 0.5, on synthetic data)" in report
    assert "| one [1] [2] | accuracy after 1 rounds | 50 ± 1 % | " in report
    assert "[1] Scaled by 0.5: users 40 to 20.\n\n[2] Measured on synthetic images.\n" in report
    assert f"    manyeyes reproduce test.table1 rows=one scale=0.5 seeds=1 {' '.join(ENGINE)}\n" in report
    page = Path("runs/test/table1_scaled_by_0.5.html").read_text()
    assert f"{' '.join(ENGINE)} folder=runs/test/scaled_by_0.5/fedavg/0" in page, "the commands of the runs"
    assert "(scaled by 0.5, on synthetic data)" in capsys.readouterr().out


def test_data_is_the_folder_of_the_datasets(capsys: Any) -> None:
    assert reproduce.main(["flair.table1", "rows=FL-F-17", "seeds=1", "data=elsewhere", "--plan"]) == 0
    out = capsys.readouterr().out
    assert "make  manyeyes data prepare flair --raw raw/flair --size 256 --out elsewhere/flair\n" in out
    assert " data.path=elsewhere/flair " in out


def test_data_is_the_only_dataset(capsys: Any) -> None:
    Path("mine").mkdir()
    Path("mine/meta.json").touch()
    assert reproduce.main(["flair.table1", "rows=FL-F-17", "seeds=1", "data=mine", "--plan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("have  ")
    assert " data.path=mine " in out
    with pytest.raises(ValueError, match=r"data=mine is one dataset and hsu2020\.figure4 needs 11: give the folder"):
        reproduce.main(["hsu2020.figure4", "data=mine", "--plan"])


@pytest.mark.slow
def test_a_synthetic_dataset_is_counted_and_described(capsys: Any) -> None:
    assert reproduce.main(["test.figure2", "synthetic=true", "scale=0.001"]) == 0
    report = next(Path("runs/test").glob("figure2*.md")).read_text()
    assert "| flair [1] [2] [3] | users | 51,414 users | 51 |" in report
    notes = [
        "Synthetic images replace the dataset.",
        "Scaled by 0.001: users 51414 to 51.",
        "Measured on synthetic images.",
    ]
    assert "\n\n".join(f"[{number}] {note}" for number, note in enumerate(notes, 1)) in report
    assert "on synthetic data" in report


def test_a_missing_dataset_is_named_with_the_command_that_creates_it(capsys: Any) -> None:
    assert reproduce.main(["test.figure2"]) == 1
    error = capsys.readouterr().err
    assert "manyeyes: flair: no prepared dataset at data/flair. Create it with: manyeyes data prepare flair" in error
