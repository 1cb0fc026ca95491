"""`manyeyes users`: the score of each user, in a table and in a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.report.users import load, user_chart, user_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten users with scores of 0.1 to 1.0, twice as much (at most 1) personalized; the best has ten times the images."""
    lines = [f"u{i},{100 if i == 10 else 10},{i / 10},{min(1, i / 5)}" for i in range(1, 11)]
    (tmp_path / "per_user.csv").write_text("\n".join(["user,examples,accuracy,personalized", *lines]) + "\n")
    counts = '"num_users_scored": 10.0, "num_users_unscorable": 2.0, "num_users_without_test": 3.0'
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 4, {counts}}}\n{{"round": 5}}\n')
    return tmp_path


def test_the_table_equals_a_computation_by_hand(folder: Path) -> None:
    table = user_table(load(folder, "mine"))
    assert table.header[:6] == ["", "users", "not scored", "mean", "weighted mean", "worst 10 %"]
    assert table.rows[0][:6] == ["mine, personalized", "10", "5", "80.0 %", "89.5 %", "20.0 %"]
    shared = [
        "mine, shared model",
        "10",
        "5",
        "55.0 %",
        "76.3 %",
        "10.0 %",
        "14.5 %",
        "32.5 %",
        "55.0 %",
        "77.5 %",
        "95.5 %",
    ]
    assert table.rows[1] == shared


def test_the_chart_has_a_line_for_each_kind_of_model(folder: Path) -> None:
    personalized, shared = user_chart(load(folder, "mine"), "").series
    assert list(shared.y) == [i / 10 for i in range(1, 11)]
    assert (personalized.dashed, shared.dashed) == (False, True)


def test_the_columns_of_today_and_of_earlier_versions_give_the_same_table(folder: Path) -> None:
    earlier = user_table(load(folder, "mine"))
    rows = [line.split(",") for line in (folder / "per_user.csv").read_text().splitlines()[1:]]
    lines = [",".join([user, count, personalized, shared]) for user, count, shared, personalized in rows]
    header = "user,examples,personalized_accuracy,accuracy"
    (folder / "per_user.csv").write_text("\n".join([header, *lines]) + "\n")
    assert user_table(load(folder, "mine")) == earlier


def test_fine_tuned_personal_layers_are_compared_with_those_before(folder: Path) -> None:
    (folder / "config.yaml").write_text("personal_layers: {name: head}\n")
    assert [scores.name for scores in load(folder, "mine")] == ["mine, personalized", "mine, models before fine-tuning"]


def test_the_missing_scores_of_a_private_run_are_explained(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text("{}")
    with pytest.raises(ValueError, match=r"training users only with unprotected_statistics=true\.$"):
        load(tmp_path, "mine")


def test_a_run_that_has_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no per_user\.csv: give the folder of a run that has finished"):
        load(tmp_path, "mine")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("per_user.csv", ""),
        ("per_user.csv", "user,examples,accuracy\nu1,10\n"),
        ("per_user.csv", "user,examples,accuracy\nu1,many,0.5\n"),
        ("per_user.csv", "\xff"),
        ("metrics.jsonl", '{"round": 4}\n'),
        ("metrics.jsonl", "{\n"),
    ],
)
def test_a_damaged_file_is_one_sentence(folder: Path, file: str, text: str) -> None:
    (folder / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"of {folder} is damaged"):
        load(folder, "mine")


@pytest.mark.parametrize(("out", "start"), [("here.png", b"\x89PNG"), ("here.svg", b"<svg")])
def test_the_command_prints_a_table_and_writes_a_chart(command: Any, folder: Path, out: str, start: bytes) -> None:
    outcome = command("users", f"mine={folder}", "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert "mine, personalized" in outcome.out
    assert Path(out).read_bytes().startswith(start)
    assert Path("here.md").read_text().startswith("|")


def test_two_runs_with_one_name_are_refused(command: Any, folder: Path) -> None:
    outcome = command("users", f"mine={folder}", f"mine={folder}", "--out", "two.png")
    assert outcome.err == "manyeyes: Two runs are called mine: give each a name of its own, as NAME=FOLDER.\n"
    assert (outcome.code, Path("two.png").exists()) == (2, False)
