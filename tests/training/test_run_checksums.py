"""The text files of a run folder have checksums, and one that has changed is refused by those who read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyeyes.io.files import write_text
from manyeyes.training import run_checksums
from manyeyes.training.run_checksums import check_text, read_checksums, write_checked_text


def test_a_file_that_was_edited_is_refused_and_one_without_a_checksum_is_not(tmp_path: Path) -> None:
    write_checked_text(tmp_path, "a", "one")
    check_text(tmp_path, "a", b"one")
    check_text(tmp_path, "other", b"anything")
    with pytest.raises(ValueError, match=r"a is damaged or was edited: restore it, or delete checksums.json if you"):
        check_text(tmp_path, "a", b"two")


def test_a_process_that_dies_between_two_writes_leaves_a_file_that_has_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("one", "two"):
        write_checked_text(tmp_path, "a", text)

    def die_at_the_file(path: Path, text: str) -> None:
        if path.name == "a":
            raise KeyboardInterrupt
        write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(run_checksums, "write_text", die_at_the_file)
        with pytest.raises(KeyboardInterrupt):
            write_checked_text(tmp_path, "a", "three")
    check_text(tmp_path, "a", (tmp_path / "a").read_bytes())
    write_checked_text(tmp_path, "a", "four")
    check_text(tmp_path, "a", b"four")
    with pytest.raises(ValueError, match="is damaged or was edited"):
        check_text(tmp_path, "a", b"one")


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"a": [1]}', '{"a": [1], "crc32": [2]}', '{"crc32": 5}'])
def test_damaged_checksums_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"checksums.json is damaged: restore it, or delete it to read the other files"
    ):
        read_checksums(tmp_path)


@pytest.mark.slow
def test_the_doctor_names_each_damaged_file_of_a_run(command: Any, tiny: tuple[str, ...], tmp_path: Path) -> None:
    assert command("run", *tiny, "rounds=2", "folder=run").code == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    outcome = command("doctor", "run")
    assert (outcome.code, outcome.err) == (0, "")
    names = (
        "checkpoint.safetensors",
        "checksums.json",
        "config.yaml",
        "dataset_stats.json",
        "environment.json",
        "example_images.json",
    )
    checked = (*names, "metrics.jsonl", "model.safetensors", "per_class.csv", "per_user.csv")
    lines = {f"run/{name}: ok" for name in checked} | {"run/notes.txt: not checked, because it has no checksum"}
    assert set(outcome.out.splitlines()) == lines
    for name in ("per_user.csv", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text((tmp_path / "run" / name).read_text().replace("0", "1"))
    (tmp_path / "run" / "environment.json").unlink()
    outcome = command("doctor", "run")
    assert outcome.code == 1
    assert {line.split()[0] for line in outcome.out.splitlines() if not line.endswith(": ok")} == {
        "run/environment.json", "run/metrics.jsonl", "run/per_user.csv", "run/notes.txt:"
    }  # fmt: skip
    assert json.loads((tmp_path / "run" / "checksums.json").read_text()).keys() > {"config.yaml", "per_user.csv"}


def test_the_doctor_refuses_a_folder_without_a_run(command: Any) -> None:
    assert command("doctor", ".").err == "manyeyes: Found no run in .: give the folder of a run\n"
