"""What the board answers, to whom, and what it keeps to itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

Write = Callable[..., Path]
Serve = Callable[..., str]
TOKEN = "a-token-of-some-length"


def ask(address: str, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    """One question, with the path as it is written; the answer's content is in `body`."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.body = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def told(address: str, path: str) -> Any:
    answer = ask(address, path)
    assert answer.status == 200
    return json.loads(answer.body)  # type: ignore[attr-defined]


def ids(address: str) -> dict[str, str]:
    return {row[1]: row[0] for row in told(address, "/api/runs")["runs"]}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "html"),
        ("/board.js", "javascript"),
        ("/charts.js", "javascript"),
        ("/page.css", "css"),
        ("/api/runs", "json"),
    ],
)
def test_everything_is_served_under_a_strict_policy(serve: Serve, path: str, kind: str) -> None:
    answer = ask(serve(), path)
    assert answer.status == 200
    assert kind in answer.headers["Content-Type"]
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_written(serve: Serve, method: str) -> None:
    assert ask(serve(), "/api/runs", method).status == 405


def test_head_is_get_without_content(serve: Serve) -> None:
    answer = ask(serve(), "/", "HEAD")
    assert (answer.status, answer.body) == (200, "")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/conftest.py",
        "/server.py",
        "//etc/passwd",
        "/report?run=../secret",
        "/api/run?run=/etc",
    ],
)
def test_no_path_leads_elsewhere(serve: Serve, write: Write, path: str) -> None:
    write("../secret")
    write("one")
    address = serve()
    assert list(ids(address)) == ["one"]
    assert ask(address, path).status == 404


def test_a_run_that_becomes_a_link_is_not_read(serve: Serve, root: Path, tmp_path: Path, write: Write) -> None:
    folder = write("one")
    address = serve()
    (run,) = ids(address).values()
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert told(address, f"/api/curves?run={run}&y=accuracy") == {}
    assert ask(address, f"/api/run?run={run}").status == 404
    assert ask(address, f"/report?run={run}").status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_another_name_for_this_machine_is_refused(serve: Serve, host: str) -> None:
    answer = ask(serve(), "/api/runs", Host=host)
    assert answer.status == 421
    assert "runs" not in answer.body  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8765", "127.0.0.1:1", "[::1]:8765"])
def test_its_own_names_are_answered_to(serve: Serve, host: str) -> None:
    assert ask(serve(), "/api/runs", Host=host).status == 200


def test_a_token_opens_the_board_and_a_cookie_keeps_it_open(serve: Serve) -> None:
    address = serve(TOKEN)
    for path in ("/", "/board.js", "/api/runs", "/?token=", "/?token=wrong", "/?token=%ff", f"/?token={TOKEN}x"):
        assert ask(address, path).status == 401
    answer = ask(address, f"/?token={TOKEN}", Host="some.machine.example")
    assert answer.status == 200
    cookie, *flags = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(flags)
    assert ask(address, "/api/runs", Cookie=cookie).status == 200
    assert ask(address, "/api/runs", Cookie=cookie + "x").status == 401
    assert ask(address, "/api/runs", Cookie=cookie.replace("board_", "board_1")).status == 401, "of another port"
    assert ask(address, "/api/runs", Cookie='"; =;;\\').status == 401
    assert "Set-Cookie" not in ask(address, "/", Cookie=cookie).headers


def test_curves_come_for_the_runs_asked_for(serve: Serve, write: Write) -> None:
    for name in ("one", "two", "three"):
        write(name, 3)
    address = serve()
    found = ids(address)
    answer = told(
        address, f"/api/curves?run={found['one']}&run={found['two']}&run=nothing&x=seconds&y=accuracy&y=nothing"
    )
    assert set(answer) == {found["one"], found["two"]}
    one = answer[found["one"]]
    assert one["curves"] == {"accuracy": [[0.5, 1, 1.5, 2], [0, 0.1, 0.2, 0.3]]}
    assert one["names"] == ["train_loss", "images", "batches", "seconds", "accuracy", "loss"]
    assert ask(address, "/api/curves?x=nothing").status == 400


def test_a_run_in_full(serve: Serve, write: Write) -> None:
    write("one", lr=0.25)
    address = serve()
    (run,) = ids(address).values()
    answer = told(address, f"/api/run?run={run}")
    assert answer["settings"]["algorithm.lr"] == "0.25"
    assert answer["environment"]["command"] == "manyeyes run"


def test_reports_are_made_on_demand_in_a_world_of_their_own(serve: Serve, write: Write) -> None:
    write("one")
    write("two", lr=0.3)
    address = serve()
    one, two = ids(address).values()
    answer = ask(address, f"/report?run={one}&run={two}")
    assert answer.status == 200
    assert "<h1>" in answer.body  # type: ignore[attr-defined]
    assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
    assert "connect-src" not in answer.headers["Content-Security-Policy"]


def test_a_report_reads_no_links(serve: Serve, write: Write, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("class,examples,accuracy\nsecret,1,1\n")
    folder = write("one")
    (folder / "per_class.csv").symlink_to(tmp_path / "secret.csv")
    address = serve()
    (run,) = ids(address).values()
    answer = ask(address, f"/report?run={run}")
    assert answer.status == 422
    assert "per_class.csv is a link" in answer.body  # type: ignore[attr-defined]


def test_a_large_answer_is_compressed(serve: Serve, write: Write) -> None:
    for number in range(20):
        write(str(number), 1)
    connection = HTTPConnection(urlsplit(serve()).netloc, timeout=30)
    connection.request("GET", "/api/runs", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.headers["Content-Encoding"] == "gzip"
    answer.read()
    connection.close()
