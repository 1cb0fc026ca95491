"""What the server answers, to whom, and what it does not reveal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

Write = Callable[..., Path]
Serve = Callable[..., str]
TOKEN = "a-token-of-some-length"


def request(url: str, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    """Send one request with this exact path; the content of the response is in `body`."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    response.body = response.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return response


def get_json(url: str, path: str) -> Any:
    response = request(url, path)
    assert response.status == 200
    return json.loads(response.body)  # type: ignore[attr-defined]


def ids(url: str) -> dict[str, str]:
    return {row["name"]: row["id"] for row in get_json(url, "/api/runs")["runs"]}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "html"),
        ("/dashboard.js", "javascript"),
        ("/charts.js", "javascript"),
        ("/page.css", "css"),
        ("/api/runs", "json"),
    ],
)
def test_everything_has_a_strict_policy(serve: Serve, path: str, kind: str) -> None:
    response = request(serve(), path)
    assert response.status == 200
    assert kind in response.headers["Content-Type"]
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_written(serve: Serve, method: str) -> None:
    assert request(serve(), "/api/runs", method).status == 405


def test_head_has_no_content(serve: Serve) -> None:
    response = request(serve(), "/", "HEAD")
    assert (response.status, response.body) == (200, "")  # type: ignore[attr-defined]


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
def test_no_path_leads_out_of_the_folder(serve: Serve, write: Write, path: str) -> None:
    write("../secret")
    write("one")
    url = serve()
    assert list(ids(url)) == ["one"]
    assert request(url, path).status == 404


def test_a_run_that_was_replaced_by_a_link_is_not_read(serve: Serve, root: Path, tmp_path: Path, write: Write) -> None:
    folder = write("one")
    url = serve()
    (run,) = ids(url).values()
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert get_json(url, f"/api/curves?run={run}&y=accuracy") == {}
    assert request(url, f"/api/run?run={run}").status == 404
    assert request(url, f"/report?run={run}").status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_other_host_names_are_refused(serve: Serve, host: str) -> None:
    response = request(serve(), "/api/runs", Host=host)
    assert response.status == 421
    assert "runs" not in response.body  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8765", "127.0.0.1:1", "[::1]:8765"])
def test_host_names_of_this_machine_are_accepted(serve: Serve, host: str) -> None:
    assert request(serve(), "/api/runs", Host=host).status == 200


def test_a_token_gives_access_and_a_cookie_keeps_it(serve: Serve) -> None:
    url = serve(TOKEN)
    for path in ("/", "/dashboard.js", "/api/runs", "/?token=", "/?token=wrong", "/?token=%ff", f"/?token={TOKEN}x"):
        assert request(url, path).status == 401
    response = request(url, f"/?token={TOKEN}", Host="some.machine.example")
    assert response.status == 200
    cookie, *flags = response.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(flags)
    assert request(url, "/api/runs", Cookie=cookie).status == 200
    assert request(url, "/api/runs", Cookie=cookie + "x").status == 401
    assert request(url, "/api/runs", Cookie=cookie.replace("dashboard_", "dashboard_1")).status == 401, (
        "of another port"
    )
    assert request(url, "/api/runs", Cookie='"; =;;\\').status == 401
    assert "Set-Cookie" not in request(url, "/", Cookie=cookie).headers


def test_curves_are_those_of_the_requested_runs(serve: Serve, write: Write) -> None:
    for name in ("one", "two", "three"):
        write(name, 3)
    url = serve()
    run_ids = ids(url)
    response = get_json(
        url, f"/api/curves?run={run_ids['one']}&run={run_ids['two']}&run=nothing&x=seconds&y=accuracy&y=nothing"
    )
    assert set(response) == {run_ids["one"], run_ids["two"]}
    first = response[run_ids["one"]]
    assert first["curves"] == {"accuracy": [[0.5, 1, 1.5, 2], [0, 0.1, 0.2, 0.3]]}
    assert first["names"] == ["train_loss", "num_images", "max_client_batches", "seconds", "accuracy", "loss"]
    assert request(url, "/api/curves?x=nothing").status == 400


def test_a_run_has_all_settings_and_its_command(serve: Serve, write: Write) -> None:
    write("one", lr=0.25)
    url = serve()
    (run,) = ids(url).values()
    response = get_json(url, f"/api/run?run={run}")
    assert response["settings"]["algorithm.lr"] == "0.25"
    assert response["environment"]["command"] == "manyeyes run"


@pytest.mark.slow
def test_a_report_is_sandboxed(serve: Serve, write: Write) -> None:
    write("one")
    write("two", lr=0.3)
    url = serve()
    first, second = ids(url).values()
    response = request(url, f"/report?run={first}&run={second}")
    assert response.status == 200
    assert "<h1>" in response.body  # type: ignore[attr-defined]
    assert "sandbox allow-scripts" in response.headers["Content-Security-Policy"]
    assert "connect-src" not in response.headers["Content-Security-Policy"]


@pytest.mark.slow
def test_a_report_reads_no_links(serve: Serve, write: Write, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("class,examples,accuracy\nsecret,1,1\n")
    folder = write("one")
    (folder / "per_class.csv").symlink_to(tmp_path / "secret.csv")
    url = serve()
    (run,) = ids(url).values()
    response = request(url, f"/report?run={run}")
    assert response.status == 422
    assert "per_class.csv is not a regular file" in response.body  # type: ignore[attr-defined]


def test_a_large_response_is_compressed(serve: Serve, write: Write) -> None:
    for number in range(20):
        write(str(number), 1)
    connection = HTTPConnection(urlsplit(serve()).netloc, timeout=30)
    connection.request("GET", "/api/runs", headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    assert response.headers["Content-Encoding"] == "gzip"
    response.read()
    connection.close()


@pytest.mark.slow
def test_the_server_does_not_import_torch() -> None:
    code = "import sys, manyeyes.dashboard.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
