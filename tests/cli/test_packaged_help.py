"""The help of every command: it is printed without loading PyTorch, and is the help that the command itself prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from manyeyes.cli import COMMANDS
from manyeyes.cli.live_help import live_help
from manyeyes.cli.packaged_help import all_help
from manyeyes.config.groups import GROUPS
from manyeyes.config.help import run_help

COMMANDS_OF_DATA = [f"data {name}" for name in ("prepare", "inspect", "synthesize")]


def test_the_packaged_help_has_the_settings_of_every_choice() -> None:
    choices = [f"{group.name}={choice}" for group in GROUPS.values() for choice in group.choices()]
    live = {f"run {choice}": run_help([choice]).strip("\n") for choice in choices} | {"run": run_help().strip("\n")}
    packaged = {name: text for name, text in all_help().items() if name.partition(" ")[0] == "run"}
    assert packaged == live, "manyeyes/cli/help.txt is outdated: run make reference"


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the file has the help of Python 3.11's argparse")
def test_the_packaged_help_is_the_live_help() -> None:
    pytest.importorskip("flwr")
    assert all_help() == dict(live_help()), "manyeyes/cli/help.txt is outdated: run make reference"


def test_the_help_of_no_command_loads_pytorch(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    code = f"""
import sys
from manyeyes.cli import main
print([name for name in {[*COMMANDS, "data prepare cifar10", "run algorithm=fedvc"]} if main([*name.split(), "--help"])])
print({{'torch', 'hydra', 'flwr', 'pyarrow', 'scipy'}} & sys.modules.keys())
"""
    out, errors = spawn("-c", code).communicate(timeout=60)
    assert (out.splitlines()[-2:], errors) == (["[]", "set()"], "")


@pytest.mark.parametrize("name", [*COMMANDS, *COMMANDS_OF_DATA, "privacy plan", "privacy audit", "flower init"])
def test_the_help_of_every_command_has_an_example(command: Any, name: str) -> None:
    outcome = command(*name.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert any(f"\n  {start} {name}" in outcome.out for start in ("manyeyes", "python -m")) or (
        f"\n  python -m manyeyes.{name}" in outcome.out
    )


def test_the_help_of_a_users_component_is_live(command: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_optimizer.py").write_text("class Mine:\n    def __init__(self, strength: float = 0.25): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = command("run", "server_optimizer=own_optimizer:Mine", "--help")
    assert outcome.out.splitlines()[1].strip() == "server_optimizer.strength=0.25"
