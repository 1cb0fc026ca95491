"""Run folders as they are read: complete, damaged, and several at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from manyeyes.algorithms import fedavg
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.training.run_names import differing_settings, find_runs
from manyeyes.training.run_reader import read_run
from manyeyes.training.train import train

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    def write(name: str, settings: Mapping[str, Any] = {}, events: Sequence[Mapping[str, Any]] = ()) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(dict(settings)))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return folder

    return write


def test_a_trained_run_is_read_in_full(tmp_path: Path) -> None:
    population = make_synthetic(SyntheticImages(users=4, images_per_user=8, size=32, coarse=2, fine=4, seed=1))
    folder = tmp_path / "run"
    result = train(population, "linear", fedavg(cohort_size=2), rounds=2, folder=folder, seed=3, threads=1)
    run = read_run(folder)
    assert (run.name, run.status, run.status_note, run.problems) == ("run", "finished", "", ())
    assert (run.rounds, run.planned_rounds, run.metric, run.settings["seed"]) == (2, 2, "accuracy", 3)
    assert run.events == result.events
    assert run.last("accuracy") == result.final["accuracy"]
    assert run.settings["client_optimizer.name"] == "sgd"
    assert run.environment["engine"] in ("reference", "multiprocess")
    assert set(run.dataset_stats["splits"]) == {"train", "test"}
    assert [row["class"] for row in run.class_rows] == list(population.classes)
    assert len(run.user_rows) == run.last("num_users_scored")
    scores = run.user_scores()["accuracy"]
    assert np.average(scores.values_U, weights=scores.counts_U) == pytest.approx(result.final["accuracy"])


def test_columns_and_sums_come_from_events(write_run: WriteRun) -> None:
    counts = {"num_images": 60, "max_client_batches": 4, "seconds": 0.5}
    events = [{"round": 0, "accuracy": 0.25}, {"round": 1, **counts}, {"round": 3, "accuracy": 0.5, **counts}]
    run = read_run(write_run("a", {"rounds": 5}, events))
    assert run.curve("accuracy") == ([0, 3], [0.25, 0.5])
    assert run.curve("images_per_second") == ([1, 3], [120, 120])
    assert run.curve("loss") == ([], [])
    assert run.last("loss") is None
    assert run.event_rounds.tolist() == [0, 1, 3]
    sums = {name: values.tolist() for name, values in run.cumulative.items()}
    assert sums == {"max_client_batches": [0, 4, 8], "num_images": [0, 60, 120], "seconds": [0, 0.5, 1]}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("klass,examples,accuracy\nred,1,0.5\n", "1 rows of per_class.csv are damaged and ignored"),
        ("class,examples,luck\nred,1,0.5\n", "1 rows of per_class.csv are damaged and ignored"),
        (f"class,examples,accuracy\n{131_073 * 'x'},1,0.5\n", "per_class.csv cannot be read"),
    ],
)
def test_a_table_that_no_run_writes_is_named_and_ignored(write_run: WriteRun, table: str, problem: str) -> None:
    folder = write_run("a", events=[{"round": 0, "accuracy": 0.5}])
    (folder / "per_class.csv").write_text(table)
    run = read_run(folder)
    assert (run.class_rows, run.problems) == ([], (problem,))


def test_damaged_files_are_named_and_the_rest_is_read(write_run: WriteRun) -> None:
    folder = write_run("a", events=[{"round": 0, "accuracy": 0.5}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accur')
    (folder / "config.yaml").write_text("a: [")
    (folder / "environment.json").write_text("[]")
    (folder / "privacy.json").mkdir()
    (folder / "dataset_stats.json").write_text('{"classes": 1}')
    (folder / "per_user.csv").write_text("user,examples,accuracy\nu,1,0.5\nv,many,0.5\nw,1\nx,1,nan\n")
    run = read_run(folder)
    assert [event["round"] for event in run.events] == [0]
    assert run.user_rows == [{"user": "u", "examples": "1", "accuracy": "0.5"}]
    assert run.problems == (
        "line 2 of metrics.jsonl is damaged and ignored",
        "config.yaml cannot be read",
        "dataset_stats.json is damaged and ignored",
        "environment.json cannot be read",
        "privacy.json cannot be read (Is a directory)",
        "3 rows of per_user.csv are damaged and ignored",
    )


@pytest.mark.parametrize(
    "line",
    ['{"round": true}', '{"round": 0}', '{"round": 1' + "0" * 400 + "}", '{"round": 1, "seconds": 1' + "0" * 400 + "}"],
)
def test_a_line_that_no_run_writes_is_ignored(write_run: WriteRun, line: str) -> None:
    folder = write_run("a", events=[{"round": 0}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{line}\n{line}\n{{"round": 1}}\n')
    run = read_run(folder)
    assert [event["round"] for event in run.events] == [0, 1]
    assert run.problems == ("2 lines of metrics.jsonl, the first line 2, are damaged and ignored",)


def test_a_folder_that_does_not_exist_is_an_empty_run(tmp_path: Path) -> None:
    run = read_run(tmp_path / "missing")
    assert (run.status, run.events, run.problems) == ("empty", [], ())


def test_runs_that_differ_only_in_their_seed_share_a_key(write_run: WriteRun) -> None:
    first, second = (read_run(write_run(f"s{seed}", {"lr": 1, "seed": seed, "folder": seed})) for seed in (0, 1))
    other, unknown = read_run(write_run("other", {"lr": 2, "seed": 0})), read_run(write_run("unknown"))
    assert first.key_without_seed == second.key_without_seed
    assert len({run.key_without_seed for run in (first, other, unknown)}) == 3
    assert differing_settings([first, second]) == ["seed"]


def test_the_runs_of_a_sweep_are_named_by_what_differs(write_run: WriteRun, tmp_path: Path) -> None:
    for number in (10, 2):
        write_run(f"sweep/{number}", {"algorithm": {"lr": number}, "folder": str(number)})
    assert [run.name for run in find_runs([str(tmp_path / "sweep")])] == ["lr 2", "lr 10"]
    assert [run.name for run in find_runs([f"mine={tmp_path / 'sweep'}"])] == ["mine 2", "mine 10"]


def test_runs_with_the_same_name_are_named_by_their_folders(write_run: WriteRun) -> None:
    first, second = write_run("x/a"), write_run("y/b")
    assert [run.name for run in find_runs([f"z={first}", f"z={second}"])] == [f"z ({first})", f"z ({second})"]


def test_names_and_folders_may_contain_equals_signs(write_run: WriteRun) -> None:
    folder = write_run("lr=0.1")
    arguments = [str(folder), f"a={folder}", f"lr=1={folder}"]
    assert [find_runs([argument])[0].name for argument in arguments] == ["lr=0.1", "a", "lr=1"]


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^No folder nowhere"):
        find_runs(["a=nowhere"])
    with pytest.raises(ValueError, match="has no run"):
        find_runs([str(tmp_path)])
