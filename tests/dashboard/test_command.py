"""`manyeyes dashboard` as a user starts and stops it."""

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


def read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split(": ", 1)[1].split("  (")[0]


@pytest.mark.slow
def test_the_command_prints_its_url_and_stops_quietly(root: Path, spawn: Spawn) -> None:
    process = spawn("-m", "manyeyes", "dashboard", str(root), "--port", "0")
    url = read_url(process)
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(url, timeout=30) as response:
        assert response.status == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_for_other_machines_the_url_has_a_token(root: Path, spawn: Spawn) -> None:
    process = spawn("-m", "manyeyes", "dashboard", str(root), "--port", "0", "--host", "0.0.0.0")
    url = read_url(process)
    token = url.partition("?token=")[2]
    assert len(token) >= 32
    port = url.split(":")[2].split("/")[0]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/?token={token}", timeout=30) as response:
        assert response.status == 200


def test_a_port_in_use_is_one_sentence(root: Path, command: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = command("dashboard", str(root), "--port", str(port))
    assert outcome.code == 2
    assert outcome.err == f"manyeyes: Port {port} is in use: choose another with --port (0: any free port).\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "No folder nowhere: give the folder that has your runs."),
        ([".", "--token", "short"], "--token needs at least 8 letters, digits, - or _: omit it for a random one."),
        ([".", "--port", "99999"], "--port is 99999: it must be from 0 to 65535."),
        ([".", "--port", "x"], "argument --port: invalid int value: 'x' (see manyeyes dashboard --help)"),
        (
            [".", "--host", "203.0.113.1"],
            "--host 203.0.113.1 is not an address of this machine: use 127.0.0.1 or 0.0.0.0.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(command: Callable[..., Any], arguments: list[str], message: str) -> None:
    outcome = command("dashboard", *arguments)
    assert (outcome.code, outcome.err) == (2, f"manyeyes: {message}\n")
