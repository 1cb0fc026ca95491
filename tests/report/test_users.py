"""Every user's own result: what a run folder says, in a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.report.users import draw, load, markdown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten users who score 0.1 to 1.0, and twice as much or 1 after adaptation; the best has ten times the photos."""
    lines = [f"u{i},{100 if i == 10 else 10},{i / 10},{min(1, i / 5)}" for i in range(1, 11)]
    (tmp_path / "per_user.csv").write_text("\n".join(["user,examples,accuracy,adapted", *lines]) + "\n")
    event = '{"round": 4, "num_users_scored": 10.0, "num_users_unscorable": 2.0, "user_untested": 3.0}\n{"round": 5}\n'
    (tmp_path / "metrics.jsonl").write_text(event)
    return tmp_path


def test_the_table_by_hand(folder: Path) -> None:
    found = load(folder)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown(found).splitlines()]
    assert rows[0][:6] == ["", "users", "too small", "mean", "weighted", "worst tenth"]
    assert rows[2] == ["", "10", "5", "0.550", "0.763", "0.100", "0.145", "0.325", "0.550", "0.775", "0.955"]
    assert rows[3][:6] == [", adapted", "10", "5", "0.800", "0.895", "0.200"]


def test_the_picture_has_a_line_for_each(folder: Path) -> None:
    (axes,) = draw(load(folder)).axes
    before, after = axes.get_lines()
    assert before.get_ydata().tolist() == [i / 10 for i in range(1, 11)]
    assert after.get_linestyle() == "--"


def test_a_run_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no per_user\.csv: give the folder of a run that has ended"):
        load(tmp_path)


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
def test_what_is_damaged_is_one_sentence(folder: Path, file: str, text: str) -> None:
    (folder / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"of {folder} is damaged"):
        load(folder)


def test_the_command_prints_and_draws(command: Any, folder: Path) -> None:
    found = command("users", f"mine={folder}", "--out", "here.png")
    assert (found.code, found.err) == (0, "")
    assert "mine, adapted" in found.out
    assert (Path("here.png").read_bytes()[:4], Path("here.md").read_text()[:1]) == (b"\x89PNG", "|")


def test_two_runs_of_one_name_are_refused(command: Any, folder: Path) -> None:
    found = command("users", f"mine={folder}", f"mine={folder}", "--out", "two.png")
    assert found.err == "manyeyes: two runs are called mine: give each a name of its own, as NAME=FOLDER\n"
    assert (found.code, Path("two.png").exists()) == (1, False)
