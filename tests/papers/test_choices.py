"""What a paper leaves open is an option, and runs with another answer have folders and notes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.choices import CHOICES, open_choices, with_answers
from manyeyes.papers.metric import AfterRounds, relative_after
from manyeyes.papers.notes import choice_notes
from manyeyes.papers.plan import ReproduceOptions, planned_runs, select_rows

ROW = "CIFAR-10, FedAvg, K=10, alpha=0.1"


def test_the_recipes_have_the_default_answers() -> None:
    for exhibit in EXHIBITS.values():
        assert with_answers(exhibit, ReproduceOptions().answers) == exhibit


def test_landmarks_fedir_aims_at_balanced_classes() -> None:
    (row,) = (row for row in EXHIBITS["hsu2020.table4"].rows if row.name == "FedAvg + FedIR, K=10, all layers")
    assert row.runs[0].setting("example_weighting.target") == "uniform"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "answer", "setting", "value"),
    [
        ("hsu2020.table4", "fedir_target=population", "example_weighting.target", "population"),
        ("hsu2020.table2", "fedvc_replacement=true", "algorithm.replacement", "true"),
        ("hsu2020.figure4", "cifar_schedule=constant", "algorithm.schedule.kind", "constant"),
    ],
)
def test_another_answer_changes_the_runs_in_question_and_their_folders(
    key: str, answer: str, setting: str, value: str
) -> None:
    name, _, text = answer.partition("=")
    options = ReproduceOptions(**{name: text})  # type: ignore[arg-type]
    before, after = EXHIBITS[key], select_rows(EXHIBITS[key], options)
    changed = [run for run in after.runs if run not in before.runs]
    assert changed
    assert {run.setting(setting) for run in changed} == {value}
    assert all(run.name.endswith(f"-{name}_{text}") for run in changed)
    folders = {planned.folder for planned in planned_runs(after, options)}
    assert len(folders & {planned.folder for planned in planned_runs(before, options)}) == len(before.runs) - len(
        changed
    )
    assert answer in options.arguments


def test_every_choice_is_open_somewhere() -> None:
    runs = [run for exhibit in EXHIBITS.values() for run in exhibit.runs]
    assert open_choices(runs) == list(CHOICES)


def test_an_unknown_answer_is_rejected() -> None:
    with pytest.raises(ValueError, match="cifar_schedule is 'linear': set it to"):
        ReproduceOptions(cifar_schedule="linear", folder=Path("runs"))


def test_a_relative_accuracy_names_the_schedule_of_its_denominator() -> None:
    (row,) = (row for row in EXHIBITS["hsu2020.figure4"].rows if row.name == ROW)
    (note,) = choice_notes(row, relative_after(), ReproduceOptions(cifar_schedule="constant"))
    assert "cifar_schedule=constant here (algorithm.lr=0.01 algorithm.schedule.kind=constant)" in note
    assert choice_notes(row, AfterRounds("accuracy"), ReproduceOptions()) == ()
