"""The command: what a person did wrong is one sentence, and the exit code says how it went."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from manyeyes import cli
from manyeyes.core.state import DivergenceError
from manyeyes.training.loop import Interrupted


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_names_every_command(command: Any, words: tuple[str, ...]) -> None:
    found = command(*words)
    assert (found.code, found.err) == (0, "")
    assert all(f"\n  {name} " in found.out for name in cli.COMMANDS)


def test_version(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("-m", "manyeyes", "--version")
    assert process.communicate(timeout=60) == (f"manyeyes {version('manyeyes')}\n", "")
    assert process.returncode == 0


def test_the_doctor_names_the_package_of_every_extra_that_a_command_needs(command: Any) -> None:
    found = command("doctor")
    assert found.code == 0
    assert all(f"│ {package} " in found.out for package in ("tensorboard", "mlflow", "wandb", "flwr", "submitit"))


def test_an_unknown_command_is_named(command: Any) -> None:
    found = command("train")
    assert (found.code, found.out) == (2, "")
    assert found.err == f"manyeyes: 'train' is no command: choose {', '.join(cli.COMMANDS)}\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("lr is -1: it must be a number above 0"), 1, "lr is -1: it must be a number above 0"),
        (DivergenceError("no client returned a finite update"), 1, "no client returned a finite update"),
        (OSError(28, "No space left on device", "a/model"), 1, "a/model: No space left on device"),
        (OSError(28, "No space left on device"), 1, "a file: No space left on device"),
        (Interrupted("Stopped after round 3 of 9"), 130, "Stopped after round 3 of 9"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_an_error_is_one_sentence_and_a_code(
    command: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "run", fail)
    found = command("run")
    assert (found.code, found.out, found.err) == (code, "", f"manyeyes: {sentence}\n")


def test_a_broken_invariant_is_not_hidden(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise AssertionError("impossible")

    monkeypatch.setitem(cli.COMMANDS, "run", fail)
    with pytest.raises(AssertionError, match="impossible"):
        command("run")


def test_a_run_in_a_process_of_its_own_says_where_it_is_and_is_silent_otherwise(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    process = spawn("-m", "manyeyes", "run", *tiny, "rounds=2", "folder=here")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("here: accuracy 0.")
    assert out.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
