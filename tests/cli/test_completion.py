"""Tab completion: what can follow a command line, and the scripts in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.cli import COMMANDS
from manyeyes.cli.completion import complete
from manyeyes.config.groups import GROUPS, run_options


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("manyeyes re", ["report", "reproduce"]),
        ("manyeyes data ", ["embed", "inspect", "prepare", "synthesize", "verify"]),
        ("manyeyes data prepare cifar1", ["cifar10", "cifar100"]),
        ("manyeyes data prepare cifar10 --cla", ["--classes-per-client"]),
        ("manyeyes report --t", ["--title"]),
        ("manyeyes run --m", ["--multirun"]),
        ("manyeyes run evaluate_every_f", ["evaluate_every_fraction="]),
        ("manyeyes run algorithm=fedp", ["algorithm=fedper", "algorithm=fedprox"]),
        ("manyeyes run --multirun algorithm=fedavg,fedp", ["algorithm=fedavg,fedper", "algorithm=fedavg,fedprox"]),
        ("manyeyes run metrics=[ece,t", ["metrics=[ece,top_k"]),
        ("manyeyes run algorithm=fedper algorithm.head_l", ["algorithm.head_layers="]),
        ("manyeyes run algorithm.head_l", []),  # fedavg, the default, has no such option
        ("manyeyes run engine.compile=", ["engine.compile=false", "engine.compile=true"]),
        ("manyeyes run data.path=", []),  # a path: the shell completes it
        ("manyeyes fedper model_name=r", ["model_name=resnet"]),
        ("manyeyes flower init app compressor=i", ["compressor=int8"]),
        ("manyeyes reproduce sc", ["scale="]),
        ("manyeyes run 'folder=my runs' sampler=p", ["sampler=poisson"]),
        ('manyeyes run "folder=my ru', []),
        ("manyeyes nothing ", []),
    ],
)
def test_what_can_follow_a_command_line(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_every_command_setting_of_the_run_and_group_is_offered() -> None:
    assert complete("manyeyes ") == sorted([*COMMANDS, "--help", "--version"])
    settings = complete("manyeyes run ")
    assert {f"{name}=" for name in (*GROUPS, *(option.name for option in run_options()))} <= {*settings}
    assert complete("manyeyes run algorithm=") == sorted(f"algorithm={name}" for name in NAMED_ALGORITHMS)


def test_bash_gets_what_follows_its_word_breaks_and_zsh_whole_words() -> None:
    assert complete("manyeyes run algorithm=ditto algorithm.lam", "bash") == ["algorithm.lam="]
    assert complete("manyeyes run algorithm=dit", "bash") == ["ditto "]
    assert complete("manyeyes run algorithm=dit", "zsh") == ["algorithm=ditto "]


def test_completion_does_not_load_large_libraries(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import sys; from manyeyes.cli import main; main(['completion', 'zsh', '--line', 'manyeyes run model=re']); "
    out, _ = spawn("-c", f"{code}print({{'torch', 'hydra', 'rich'}} & sys.modules.keys())").communicate(timeout=60)
    assert out == "model=resnet18 \nmodel=resnet34 \nset()\n"


def test_an_unknown_shell_is_refused(command: Any) -> None:
    outcome = command("completion", "tcsh")
    assert outcome.code == 2
    assert "choose from" in outcome.err


def _script(shell: str, folder: Path) -> str:
    """Write the script of a shell and a command `manyeyes` that runs this Python; return the line that loads both."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    out = subprocess.run(
        [sys.executable, "-m", "manyeyes", "completion", shell], capture_output=True, text=True, check=True
    )
    (folder / f"script.{shell}").write_text(out.stdout)
    (folder / "manyeyes").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m manyeyes "$@"\n')
    (folder / "manyeyes").chmod(0o755)
    return f'export PATH="{folder}:$PATH"; source "{folder}/script.{shell}"'


def test_the_script_of_bash_completes_a_choice(tmp_path: Path) -> None:
    line = (
        'COMP_LINE="manyeyes run algorithm=fedp"; COMP_POINT=${#COMP_LINE}; _manyeyes; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    out = subprocess.run(["bash", "-c", f"{_script('bash', tmp_path)}; {line}"], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("fedper \nfedprox \n", "")


def test_the_script_of_fish_completes_a_choice(tmp_path: Path) -> None:
    line = "complete -C 'manyeyes run algorithm=fedp'"
    out = subprocess.run(
        ["fish", "--no-config", "-c", f"{_script('fish', tmp_path)}; {line}"], capture_output=True, text=True
    )
    assert (out.stdout, out.stderr) == ("algorithm=fedper\nalgorithm=fedprox\n", "")


def test_the_script_of_zsh_is_read_without_an_error(tmp_path: Path) -> None:
    load = f"autoload -Uz compinit && compinit -u -D; {_script('zsh', tmp_path)}; whence -w _manyeyes"
    out = subprocess.run(["zsh", "-f", "-c", load], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("_manyeyes: function\n", "")
