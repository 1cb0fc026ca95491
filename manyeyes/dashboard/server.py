"""The dashboard's web server: the page, changes of the list, curves, one run in full, and reports."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from manyeyes.dashboard.auth import AuthMiddleware
from manyeyes.dashboard.curves import AXES, CurveCache
from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.live_run import LiveRun
from manyeyes.dashboard.report_process import make_report
from manyeyes.dashboard.settings import safe_text
from manyeyes.io.tail import read_small_file
from manyeyes.report.chart import short_numbers
from manyeyes.report.page import page_style, read_resource
from manyeyes.training.run_files import ENVIRONMENT_FILE

MAX_REPORTS = 4  # at a time
MAX_REQUESTED = 64  # runs or curves in one response
# A report contains its scripts and styles. The sandbox keeps it from sending requests to the dashboard.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)
PACKAGE = "manyeyes.dashboard"
UNKNOWN_RUN = "Unknown run: it may have been removed.\n"
SCRIPTS = ("dashboard", "format", "store", "groups", "list", "compare")


def application(index: RunIndex, folder: str, port: int, token: str | None = None) -> Starlette:
    """Return the dashboard of the runs in a folder; with a token, only for those who have it."""
    dashboard = Dashboard(index, folder)
    endpoints: dict[str, Any] = {
        "/": _file("text/html", read_resource("page.html", PACKAGE)),
        "/page.css": _file("text/css", page_style()),
        "/dashboard.css": _file("text/css", read_resource("dashboard.css", PACKAGE)),
        "/charts.css": _file("text/css", read_resource("charts.css")),
        "/charts.js": _file("text/javascript", read_resource("charts.js")),
        **{f"/{name}.js": _file("text/javascript", read_resource(f"{name}.js", PACKAGE)) for name in SCRIPTS},
        "/api/runs": dashboard.runs,
        "/api/curves": dashboard.curves,
        "/api/run": dashboard.run,
        "/report": dashboard.report,
    }
    routes = [Route(path, endpoint) for path, endpoint in endpoints.items()]
    auth = Middleware(AuthMiddleware, port=port, token=token)
    return Starlette(routes=routes, middleware=[auth, Middleware(GZipMiddleware, compresslevel=1)])


@dataclass(frozen=True, eq=False)
class Dashboard:
    """Answers the requests for data; Starlette calls each in a thread."""

    index: RunIndex
    folder: str
    curve_cache: CurveCache = field(default_factory=CurveCache)
    # Each report has a process of its own, so that a slow one delays no other; few at a time, because each takes memory.
    report_slots: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MAX_REPORTS))

    def runs(self, request: Request) -> Response:
        changes = self.index.changes(request.query_params.get("since", ""))
        return _json({"folder": safe_text(self.folder), **changes})

    def curves(self, request: Request) -> Response:
        x = request.query_params.get("x", "round")
        if x not in AXES:
            return PlainTextResponse(f"Unknown axis: set x to one of {', '.join(AXES)}.\n", 400)
        names = request.query_params.getlist("y")[:MAX_REQUESTED]
        answer: dict[str, Any] = {}
        for run in self._requested(request):
            columns = self.curve_cache.curves(run.metrics_path, x, names)
            if columns is not None:
                curves = {name: list(map(short_numbers, curve)) for name, curve in columns[1].items()}
                answer[run.id] = {"names": columns[0], "curves": curves}
        return _json(answer)

    def run(self, request: Request) -> Response:
        runs = self._requested(request)
        if len(runs) != 1:
            return PlainTextResponse(UNKNOWN_RUN, 404)
        return _json({"settings": runs[0].settings, "environment": _environment(runs[0])})

    def report(self, request: Request) -> Response:
        runs = self._requested(request)
        if not runs:
            return PlainTextResponse(UNKNOWN_RUN, 404)
        try:
            with self.report_slots:
                page = make_report([run.path for run in runs], request.query_params.getlist("color"))
        except (ValueError, OSError) as error:
            return PlainTextResponse(f"The report cannot be made: {error}\n", 422)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    def _requested(self, request: Request) -> list[LiveRun]:
        """Return the runs that a request names by id, if their folders have not been replaced by links."""
        ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MAX_REQUESTED]
        runs = [self.index.runs[run_id] for run_id in ids if run_id in self.index.runs]
        return [run for run in runs if os.path.realpath(run.path) == run.path]


def _file(media_type: str, text: str) -> Callable[[Request], Response]:
    """Return an endpoint; each request gets a response of its own, whose headers the middleware changes."""
    return lambda request: Response(text, media_type=media_type)


def _json(content: Any) -> Response:
    return Response(json.dumps(content, separators=(",", ":"), allow_nan=False), media_type="application/json")


def _environment(run: LiveRun) -> dict[str, str]:
    try:
        environment = json.loads(read_small_file(os.path.join(run.path, ENVIRONMENT_FILE)))
        command = " ".join(map(str, environment.pop("command", [])))
        packages = ", ".join(f"{name} {version}" for name, version in environment.pop("packages", {}).items())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
    texts = {name: str(value) for name, value in environment.items() if isinstance(value, str | int)}
    return {name: safe_text(text) for name, text in {"command": command, "packages": packages, **texts}.items()}
