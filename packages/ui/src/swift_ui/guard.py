"""Authentication and origin checks for every request.

The terminal shows an address with a token in its fragment, which browsers do not send. The page's script exchanges it
for a cookie that scripts cannot read (HttpOnly) and other sites cannot send (SameSite). In addition, `Host` must name
this machine (against DNS rebinding), `Origin` must be the page's own, and requests that change something must have one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swift.errors import SwiftError, UsageError
from swift.untrusted import is_unicode, parse_json
from swift_ui.options import LOCAL_HOSTS, UiSettings

MOST_BYTES = 1 << 20
"""Maximum size of a request body."""
READING = frozenset({"GET", "HEAD"})
LOGIN = "/api/login"
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
"""Added to every response that does not set them itself."""


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; raise `UsageError` if its body is invalid."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise UsageError("The connection closed before the request body was complete.") from None
    content = parse_json(body, "The request body is not valid JSON", UsageError)
    if not isinstance(content, dict):
        raise UsageError("The request body must be a JSON object.")
    if not is_unicode(json.dumps(content, ensure_ascii=False)):
        raise UsageError("A string of the request has an unpaired surrogate.")
    return content


class PageGuard:
    """Middleware that refuses requests of other pages, and adds security headers to all responses."""

    def __init__(self, app: ASGIApp, settings: UiSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets
        request = Request(scope, receive)
        response: ASGIApp = self._app
        try:
            self._check(request)
            if request.url.path == LOGIN:
                response = await self._login(request)
        except HTTPException as refused:
            response = JSONResponse({"error": {"message": refused.detail}}, refused.status_code)
        await response(scope, receive, _with_headers(send))

    def _check(self, request: Request) -> None:
        self._check_names(request)
        if request.method not in READING:
            _check_body(request)
        path = request.url.path
        if path.startswith("/api/") and path != LOGIN and not self._has_cookie(request):
            raise HTTPException(401, "Not logged in. Open the address that the terminal shows.")

    def _check_names(self, request: Request) -> None:
        """Check the requested host and the origin of the request."""
        hosts = request.headers.getlist("host")
        named = _host(hosts[0]) if len(hosts) == 1 else None
        own = self._settings.host
        if named is None or (own not in _ANYWHERE and named not in {*LOCAL_HOSTS, own.lower()}):
            raise HTTPException(403, "Unknown host name. Open the address that the terminal shows.")
        origins = request.headers.getlist("origin")
        if origins and origins != [f"http://{hosts[0]}"]:
            raise HTTPException(403, "Requests of other sites are not allowed.")
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise HTTPException(403, "Requests of other sites are not allowed.")
        if request.method not in READING and not origins:
            raise HTTPException(403, "POST requests need an Origin header.")

    def _has_cookie(self, request: Request) -> bool:
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self._settings.cookie)
        return found is not None and _same(found.value, session(self._settings))

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            raise HTTPException(405, "Use POST to log in.")
        try:
            token = (await read_object(request)).get("token")
        except SwiftError as error:
            raise HTTPException(400, error.message) from None
        if not isinstance(token, str) or not _same(token, self._settings.token):
            raise HTTPException(
                403, "The token is invalid or from an earlier start. Open the address that the terminal shows."
            )
        response = JSONResponse({"open": True})
        response.set_cookie(
            self._settings.cookie, session(self._settings), httponly=True, samesite="strict", path="/api/"
        )
        return response


def session(settings: UiSettings) -> str:
    """Return the value of the cookie, derived from the token."""
    return hmac.new(settings.token.encode(), b"swift ui session", hashlib.sha256).hexdigest()


def _check_body(request: Request) -> None:
    length = request.headers.get("content-length")
    if length is None or not length.isdecimal() or "transfer-encoding" in request.headers:
        raise HTTPException(411, "The Content-Length header is required.")
    if int(length) > MOST_BYTES:
        raise HTTPException(413, f"The request body is larger than {MOST_BYTES:,} bytes.")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The content type must be application/json.")


def _host(header: str) -> str | None:
    """Return the name in a Host header without its port; None if it is invalid."""
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
