"""The command: a user's mistake is one sentence, and the exit code says how the command ended."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyeyes import cli
from manyeyes.core.state import DivergenceError
from manyeyes.io.packages import optional_requirements
from manyeyes.training.loop import Interrupted

COMMANDS = (
    *(
        "run",
        "reproduce",
        "flair",
        "fedper",
        "report",
        "predict",
        "export",
        "users",
        "data",
        "privacy",
        "flower",
        "estimate",
        "dashboard",
    ),
    *("demo", "doctor", "completion"),
)


@pytest.fixture
def run_raises(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `manyeyes run` raise an error."""

    def replace(error: BaseException) -> None:
        def fail(argv: list[str]) -> int:
            raise error

        monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(main=fail))

    return replace


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(command: Any, argv: tuple[str, ...]) -> None:
    outcome = command(*argv)
    assert (outcome.code, outcome.err) == (0, "")
    assert tuple(cli.COMMANDS) == COMMANDS
    assert all(f"\n  {name} " in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_a_main_function(name: str) -> None:
    if name == "flower":
        pytest.importorskip("flwr")
    assert callable(import_module(f"manyeyes.cli.{name}").main)


def test_the_version_is_that_of_the_package(command: Any) -> None:
    outcome = command("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"manyeyes {version('manyeyes')}\n", "")


def test_the_doctor_lists_the_packages_of_the_extras(command: Any) -> None:
    outcome = command("doctor")
    assert outcome.code == 0
    assert all(
        f"│ {package} " in outcome.out
        for package in ("tensorboard", "mlflow", "wandb", "flwr", "pyarrow", "scipy", "starlette")
    )
    assert "manyeyes" not in optional_requirements()  # an extra contains it to include another extra


def test_the_doctor_cuts_nothing_off_at_80_columns(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = command("doctor")
    assert "…" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_an_unknown_command_is_refused_with_the_nearest(command: Any) -> None:
    outcome = command("reprot")
    assert (outcome.code, outcome.out) == (2, "")
    choices = f"choose {', '.join(cli.COMMANDS)}, or package.module:function."
    assert outcome.err == f"manyeyes: Unknown command 'reprot' (did you mean 'report'?): {choices}\n"


def test_a_users_own_command_runs_by_import_path(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_command.py").write_text("def hello(argv):\n    print('hello', *argv)\n    return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = command("own_command:hello", "a", "b")
    assert (outcome.code, outcome.out, outcome.err) == (3, "hello a b\n", "")


def test_a_command_without_arguments_refuses_arguments(command: Any) -> None:
    outcome = command("demo", "fast")
    sentence = "manyeyes: unrecognized arguments: fast (see manyeyes demo --help)\n"
    assert (outcome.code, outcome.err) == (2, sentence)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("lr is -1: it must be a number above 0"), 2, "lr is -1: it must be a number above 0"),
        (DivergenceError("no client returned a finite update"), 1, "no client returned a finite update"),
        (OSError(28, "No space left on device", "a/model"), 1, "a/model: No space left on device"),
        (OSError(28, "No space left on device"), 1, "a file: No space left on device"),
        (Interrupted("Stopped after round 3 of 9"), 130, "Stopped after round 3 of 9"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(
    command: Any, run_raises: Callable[[BaseException], None], error: BaseException, code: int, sentence: str
) -> None:
    run_raises(error)
    outcome = command("run")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"manyeyes: {sentence}\n")


@pytest.mark.parametrize("error", [AssertionError("impossible"), RuntimeError("a defect")])
def test_a_defect_is_raised(command: Any, run_raises: Callable[[BaseException], None], error: BaseException) -> None:
    run_raises(error)
    with pytest.raises(type(error), match=str(error)):
        command("run")


@pytest.mark.slow
def test_a_run_in_its_own_process_prints_one_line_and_writes_only_its_folder(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], tiny: tuple[str, ...]
) -> None:
    process = spawn("-m", "manyeyes", "run", *tiny, "rounds=2", "folder=run")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert out.startswith("run: accuracy 0.")
    assert out.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
