"""Who may open the dashboard: programs of this machine or, with a token, those who have it."""

import hmac
import ipaddress
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # a URL may contain the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class AuthMiddleware:
    """Lets only GET and HEAD requests through, with the token if there is one.

    Without a token it answers only to host names of this machine: another site's name that points here (DNS rebinding)
    is refused.
    """

    app: ASGIApp
    port: int
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        query_token = request.query_params.get("token", "")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    response_headers.setdefault(name, value)
                if self._is_token(query_token):
                    cookie = f"{self._cookie_name}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    response_headers.append("Set-Cookie", cookie)
            await send(message)

        tokens = (query_token, request.cookies.get(self._cookie_name, ""))
        app = self._refusal(request, any(map(self._is_token, tokens))) or self.app
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: Request, has_token: bool) -> PlainTextResponse | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The dashboard is read-only: use GET or HEAD.\n", 405, {"Allow": "GET, HEAD"})
        if self.token is not None and not has_token:
            return PlainTextResponse("Open the URL with the token that `manyeyes dashboard` printed.\n", 401)
        if self.token is None and not is_this_machine(_host_name(request.headers.get("host", ""))):
            return PlainTextResponse("Open the dashboard as localhost or 127.0.0.1.\n", 421)
        return None

    @property
    def _cookie_name(self) -> str:
        return f"manyeyes_dashboard_{self.port}"  # a browser sends a cookie to every port

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(errors="replace"), self.token.encode())


def is_this_machine(host: str) -> bool:
    """Return whether a host name always means this machine, whatever a name server says."""
    with suppress(ValueError):
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] or header
