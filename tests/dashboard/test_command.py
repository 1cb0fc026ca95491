"""`manyeyes board` as a person starts and ends it."""

from __future__ import annotations

import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Spawn = Callable[..., subprocess.Popen[str]]


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split(": ", 1)[1].split("  (")[0]


def test_it_says_where_it_is_and_ends_quietly(root: Path, spawn: Spawn) -> None:
    process = spawn("-m", "manyeyes", "board", str(root), "--port", "0")
    found = address(process)
    assert found.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(found, timeout=30) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


def test_beyond_this_machine_the_address_has_a_token(root: Path, spawn: Spawn) -> None:
    process = spawn("-m", "manyeyes", "board", str(root), "--port", "0", "--host", "0.0.0.0")
    found = address(process)
    token = found.partition("?token=")[2]
    assert len(token) >= 32
    port = found.split(":")[2].split("/")[0]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/?token={token}", timeout=30) as answer:
        assert answer.status == 200


def test_a_taken_port_is_one_sentence(root: Path, command: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = command("board", str(root), "--port", str(port))
    assert outcome.code == 1
    assert outcome.err == f"manyeyes: port {port} is taken: choose another with --port (0: any that is free)\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere is no folder: give the one that holds your runs"),
        ([".", "--token", "short"], "--token needs at least 8 letters, digits, - or _: leave it out for a random one"),
        ([".", "--port", "99999"], "--port is 99999: it must be from 0 to 65535"),
        ([".", "--port", "x"], "argument --port: invalid int value: 'x' (see manyeyes board --help)"),
        ([".", "--host", "203.0.113.1"], "--host 203.0.113.1 is no address of this machine: try 127.0.0.1 or 0.0.0.0"),
    ],
)
def test_wrong_words_are_one_sentence(command: Callable[..., Any], words: list[str], sentence: str) -> None:
    outcome = command("board", *words)
    assert (outcome.code, outcome.err) == (1, f"manyeyes: {sentence}\n")
