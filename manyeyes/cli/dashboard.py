"""`manyeyes board`: serve the page until Ctrl-C."""

import errno
import re
import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from threading import Thread

import uvicorn

from manyeyes.cli.parser import Parser
from manyeyes.dashboard.auth import is_this_machine
from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.server import application


def main(words: list[str]) -> int:
    """Say where the page is, and serve it."""
    parser = Parser("manyeyes board", description="A page that follows the runs below a folder, live. It only reads.")
    parser.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", default=Path("runs"), help="where runs are (runs)"
    )
    parser.add_argument("--port", type=int, default=8765, help="0: one that is free (8765)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; beyond this machine with a token"
    )
    parser.add_argument("--token", help="what the address must carry, instead of a random one")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    given = parser.parse_args(words)
    if not given.folder.is_dir():
        raise ValueError(f"{given.folder} is no folder: give the one that holds your runs")
    if given.token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{8,}", given.token):
        raise ValueError("--token needs at least 8 letters, digits, - or _: leave it out for a random one")
    token = given.token or (None if is_this_machine(given.host) else secrets.token_urlsafe(24))
    listening = _listen(given.host, given.port)
    with listening:
        port = listening.getsockname()[1]
        address = f"http://{_reachable(given.host)}:{port}/" + (f"?token={token}" if token else "")
        index = RunIndex(given.folder)
        app = application(index, str(given.folder), port, token)
        Thread(target=index.changes, daemon=True).start()  # so that the runs are read when the page asks
        print(f"runs in {given.folder}: {address}  (Ctrl-C ends it)", flush=True)
        if given.open:
            webbrowser.open(address)
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_level="error", access_log=False, timeout_graceful_shutdown=2
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket that waits at the address."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port is {port}: it must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise ValueError(f"--host {host} is no address of this machine: try 127.0.0.1 or 0.0.0.0") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is taken: choose another with --port (0: any that is free)") from None
        if error.errno == errno.EACCES:
            raise ValueError(f"port {port} is not ours to take: choose another with --port") from None
        raise ValueError(f"--host {host} is no address of this machine: try 127.0.0.1 or 0.0.0.0") from None
    return listening


def _reachable(host: str) -> str:
    """The host as a browser elsewhere would write it."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
