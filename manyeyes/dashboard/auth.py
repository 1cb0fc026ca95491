"""Who may see the board: programs of this machine that mean it, or those who have its token."""

import hmac
import ipaddress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
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
    "Referrer-Policy": "no-referrer",  # an address may carry the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class AuthMiddleware:
    """Around the whole application: reading alone, from the right address, with the token where there is one.

    Without a token only names of this machine are answered to: a page elsewhere whose name is made to point here
    (DNS rebinding) is not.
    """

    app: ASGIApp
    port: int
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                if self.token is not None and self._is(given):
                    answer.append("Set-Cookie", f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        await (self._refusal(scope, headers, given) or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers, given: str) -> PlainTextResponse | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("the board only shows: GET and HEAD\n", 405, {"Allow": "GET, HEAD"})
        if self.token is None:
            if not is_this_machine(_name(headers.get("host", ""))):
                return PlainTextResponse("ask for the board as localhost or 127.0.0.1\n", 421)
        elif not self._is(given) and not self._is(self._kept(headers)):
            return PlainTextResponse("open the address with the token that `manyeyes board` printed\n", 401)
        return None

    @property
    def _cookie(self) -> str:
        return f"manyeyes_board_{self.port}"  # cookies do not tell ports apart

    def _kept(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host


def is_this_machine(name: str) -> bool:
    """Whether a name means this machine whoever answers for names."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
