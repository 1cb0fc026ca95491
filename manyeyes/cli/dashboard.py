"""`manyeyes dashboard`: serve a live page about runs until Ctrl-C."""

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

TOKEN = re.compile(r"[A-Za-z0-9_-]{8,}")
DEFAULT_FOLDER = "runs"
NUM_PORTS = 2**16


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if not args.folder.is_dir() and args.folder != Path(DEFAULT_FOLDER):  # which the first run creates
        raise ValueError(f"No folder {args.folder}: give the folder that has your runs.")
    if args.token is not None and not TOKEN.fullmatch(args.token):
        raise ValueError("--token needs at least 8 letters, digits, - or _: omit it for a random one.")
    token = args.token or (None if is_this_machine(args.host) else secrets.token_urlsafe(24))
    with _listen(args.host, args.port) as sock:
        port = sock.getsockname()[1]
        url = f"http://{_public_host(args.host)}:{port}/" + (f"?token={token}" if token else "")
        index = RunIndex(args.folder)
        app = application(index, str(args.folder), port, token)
        Thread(target=index.changes, daemon=True).start()  # reads the runs before the page asks for them
        print(f"Runs in {args.folder}: {url}  (Ctrl-C stops the dashboard)", flush=True)
        if args.open:
            webbrowser.open(url)
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_level="error", access_log=False, timeout_graceful_shutdown=2
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([sock])
    return 0


def _parser() -> Parser:
    description = "A live page that follows runs below a folder. It only reads."
    parser = Parser("manyeyes dashboard", description=description, example="manyeyes dashboard runs --open")
    parser.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", default=DEFAULT_FOLDER, help="of the runs (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=8765, help="0: any free port (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="to listen on; for others with a token (%(default)s)")
    parser.add_argument("--token", help="token that the URL must contain, instead of a random one")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < NUM_PORTS:
        raise ValueError(f"--port is {port}: it must be from 0 to {NUM_PORTS - 1}.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        messages = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs more permissions"}
        if error.errno in messages:
            problem = f"Port {port} {messages[error.errno]}: choose another with --port (0: any free port)."
        else:
            problem = f"--host {host} is not an address of this machine: use 127.0.0.1 or 0.0.0.0."
        raise ValueError(problem) from None


def _public_host(host: str) -> str:
    """Return the host as a browser on another machine would write it."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
