"""What the board answers: its page, what has changed, curves, one run in full, and reports."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from manyeyes import report
from manyeyes.dashboard.auth import AuthMiddleware
from manyeyes.dashboard.curves import AXES, CurveCache
from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.live_run import LiveRun
from manyeyes.dashboard.settings import shown
from manyeyes.io.tail import read_small_file
from manyeyes.report.page import page_style

TOGETHER = 64  # runs in one answer
# A report has its script and style within. It is put into a world of its own, where it can ask nothing of the board.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)
HERE, THERE = Path(__file__).parent, Path(report.__file__).parent
FILES = {
    "/": (HERE / "page.html", "text/html"),
    "/board.css": (HERE / "board.css", "text/css"),
    **{
        f"/{name}.js": (HERE / f"{name}.js", "text/javascript")
        for name in ("board", "words", "store", "list", "compare")
    },
    "/charts.js": (THERE / "charts.js", "text/javascript"),
    "/charts.css": (THERE / "charts.css", "text/css"),
}


def application(index: RunIndex, name: str, port: int, token: str | None = None) -> Starlette:
    """The board of these runs, which are in the folder `name`; with a token, for those alone who have it."""
    shelf, one_report = CurveCache(), Lock()

    def chosen(request: Request) -> list[LiveRun]:
        """The runs that a request names by id, as far as they are there, and where they were when they were found."""
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))[:TOGETHER]
        found = [index.runs.get(run) for run in wanted]
        return [run for run in found if run is not None and os.path.realpath(run.path) == run.path]

    def runs(request: Request) -> Response:
        found = index.changes(request.query_params.get("since", ""))
        return _json({"folder": shown(name), **found})

    def curves(request: Request) -> Response:
        x = request.query_params.get("x", "round")
        if x not in AXES:
            return PlainTextResponse(f"x is one of {', '.join(AXES)}\n", 400)
        names = request.query_params.getlist("y")[:TOGETHER]
        answer: dict[str, Any] = {}
        for run in chosen(request):
            found = shelf.curves(run.metrics, x, names)
            if found is not None:
                lists = {name: [_short(at), _short(values)] for name, (at, values) in found[1].items()}
                answer[run.id] = {"names": found[0], "curves": lists}
        return _json(answer)

    def one(request: Request) -> Response:
        found = chosen(request)
        if len(found) != 1:
            return PlainTextResponse("there is no such run\n", 404)
        return _json({"settings": found[0].settings, "environment": _environment(found[0])})

    def reports(request: Request) -> Response:
        found = chosen(request)
        if not found:
            return PlainTextResponse("there is no such run\n", 404)
        try:
            with one_report:  # at a time: they are large while they are made
                page = report_page([run.path for run in found])
        except (ValueError, OSError) as error:
            return PlainTextResponse(f"no report can be made: {error}\n", 422)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    answers = {"/api/runs": runs, "/api/curves": curves, "/api/run": one, "/report": reports}
    routes = [Route(path, _fixed(file.read_bytes(), kind)) for path, (file, kind) in FILES.items()]
    routes.append(
        Route("/page.css", _fixed(page_style().encode(), "text/css"))
    )  # what reports look like, and the board too
    routes += [Route(path, _in_a_thread(answer)) for path, answer in answers.items()]
    guard = Middleware(AuthMiddleware, port=port, token=token)
    return Starlette(routes=routes, middleware=[guard, Middleware(GZipMiddleware, compresslevel=1)])


def report_page(folders: list[str]) -> str:
    """The page that `manyeyes report` makes of these runs; only of plain files, as links could lead elsewhere."""
    from manyeyes.report.report import default_title, html, sections  # only now: they load torch
    from manyeyes.training.run_record import find_runs

    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False):
                    raise ValueError(f"{shown(entry.name)} is a link or no file: take it out of the run's folder")
    runs = find_runs(folders)
    return html(runs, default_title(runs), sections(runs))


def _in_a_thread(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Files are waited for beside the loop that answers."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return endpoint


def _fixed(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return endpoint


def _json(found: Any) -> Response:
    return Response(json.dumps(found, separators=(",", ":"), allow_nan=False), media_type="application/json")


def _short(values: Any) -> list[float]:
    """Six digits are more than a screen shows."""
    return [float(f"{value:.6g}") if value % 1 else int(value) for value in values.tolist()]


def _environment(run: LiveRun) -> dict[str, str]:
    """Command, versions and machine, as the run wrote them down."""
    try:
        found = json.loads(read_small_file(os.path.join(run.path, "environment.json")))
        words = " ".join(map(str, found.pop("command", [])))
        packages = ", ".join(f"{name} {version}" for name, version in found.pop("packages", {}).items())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
    rest = {name: value for name, value in found.items() if isinstance(value, str | int)}
    return {name: shown(str(value)) for name, value in {"command": words, "packages": packages, **rest}.items()}
