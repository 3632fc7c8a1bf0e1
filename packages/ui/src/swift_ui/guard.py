"""Who may ask what: every request passes here before anything else sees it.

The page is opened with a token that the terminal shows, in the part of the address that browsers keep to themselves.
The page's script trades it for a cookie that no script can read and no other site's request carries. Beside that, the
name in `Host` must be this machine's (a foreign name that resolves to it is an attack), an `Origin` must be the page's
own, and whatever changes something must have one.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swift.errors import SwiftError
from swift_ui.bodies import content_of
from swift_ui.settings import UiSettings

MOST_BYTES = 1 << 20
"""Size of a request's body: forms and questions are texts."""
READING = frozenset({"GET", "HEAD"})
LOGIN = "/api/login"
_HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_ANYWHERE = frozenset({"0.0.0.0", "::"})

CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every answer; an answer that has one of them already keeps its own."""


class RequestRefused(Exception):
    """A request that is not answered: the status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class PageGuard:
    """Refuses requests that the server's own page did not make, and adds the headers to all answers."""

    def __init__(self, app: ASGIApp, settings: UiSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks over web sockets
        request = Request(scope, receive)
        answer: ASGIApp = self._app
        try:
            self._check(request)
            if request.url.path == LOGIN:
                answer = await self._login(request)
        except RequestRefused as refused:
            answer = JSONResponse({"error": {"message": refused.reason}}, refused.status)
        await answer(scope, receive, _with_headers(send))

    def _check(self, request: Request) -> None:
        self._check_names(request)
        if request.method not in READING:
            _check_body(request)
        path = request.url.path
        if path.startswith("/api/") and path != LOGIN and not self._has_cookie(request):
            raise RequestRefused(401, "This page is not open: use the address that the terminal shows.")

    def _check_names(self, request: Request) -> None:
        """Check who is asked (Host) and by whose page (Origin, Sec-Fetch-Site)."""
        hosts = request.headers.getlist("host")
        named = _host(hosts[0]) if len(hosts) == 1 else None
        if named is None or named not in self._names() | ({named} if self._settings.host in _ANYWHERE else set()):
            raise RequestRefused(403, "This server does not answer to that name.")
        origins = request.headers.getlist("origin")
        if origins and origins != [f"http://{hosts[0]}"]:
            raise RequestRefused(403, "This was asked by a page of another site.")
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise RequestRefused(403, "This was asked by a page of another site.")
        if request.method not in READING and not origins:
            raise RequestRefused(403, "A request that changes something must say which page it is from.")

    def _names(self) -> set[str]:
        return {*_HERE} if self._settings.host in _HERE else {*_HERE, self._settings.host.lower()}

    def _has_cookie(self, request: Request) -> bool:
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self._settings.cookie)
        return found is not None and _same(found.value, session(self._settings))

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            raise RequestRefused(405, "Logging in is a POST.")
        try:
            token = (await content_of(request)).get("token")
        except SwiftError as error:
            raise RequestRefused(400, error.message) from None
        if not isinstance(token, str) or not _same(token, self._settings.token):
            raise RequestRefused(
                403, "The token is not the one of this start: use the address that the terminal shows."
            )
        answer = JSONResponse({"open": True})
        answer.set_cookie(
            self._settings.cookie, session(self._settings), httponly=True, samesite="strict", path="/api/"
        )
        return answer


def session(settings: UiSettings) -> str:
    """Return what the cookie holds: proof of the token, and not the token."""
    return hmac.new(settings.token.encode(), b"swift ui session", hashlib.sha256).hexdigest()


def _check_body(request: Request) -> None:
    length = request.headers.get("content-length")
    if length is None or not length.isdecimal() or "transfer-encoding" in request.headers:
        raise RequestRefused(411, "A request with a body must say how long it is.")
    if int(length) > MOST_BYTES:
        raise RequestRefused(413, f"A request may have {MOST_BYTES:,} bytes.")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RequestRefused(415, "Only JSON is taken.")


def _host(header: str) -> str | None:
    """Return the name in a Host header without its port; None where it is not written as one."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == header and "@" not in header and not parts.path else None


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _with_headers(send: Send) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in there]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sends
