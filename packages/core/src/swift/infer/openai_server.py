"""Requests to a server that speaks OpenAI's API.

Spoken with the standard library alone: huggingface_hub brings an HTTP library to core, but another one in its next
major version, and a few requests of JSON need none.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from swift.errors import DataError, ModelError, SwiftError, UsageError, did_you_mean

API_KEYS = ("SWIFT_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the key, the first that is set counts."""
_TRIES = 6
_BUSY = frozenset({429, 502, 503, 504})
_TIMEOUT = 600.0
"""Seconds without a word from the server."""
T = TypeVar("T")

_BROKEN = (OSError, HTTPException)
"""What a connection fails with; `urllib.error.URLError` is an OSError."""


class OpenAiServer:
    """Requests to one server, with its faults in plain words."""

    def __init__(self, address: str, api_key: str | None = None) -> None:
        parts = urlsplit(address)
        if not parts.hostname:
            raise UsageError(f"{address} is not the address of a server.", hint="For example: http://127.0.0.1:8000")
        self.address = address.rstrip("/").removesuffix("/v1")
        key = api_key or next((os.environ[name] for name in API_KEYS if os.environ.get(name)), None)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        # A proxy cannot know what this machine calls itself.
        proxies = urllib.request.ProxyHandler({}) if _is_loopback(parts.hostname) else urllib.request.ProxyHandler()
        self._opener = urllib.request.build_opener(proxies)

    def choose(self, requested: str | None, say: Callable[[str], None]) -> str:
        """Return the name that requests use; if none is requested, the first adapter or else the first model."""
        served = self.models()
        if requested is None:
            if not served:
                raise ModelError(f"The server at {self.address} serves no model.", hint="Look at the server's log.")
            if len(served) > 1:
                say(f"Asking {served[0]}; also served, by --model: {', '.join(served[1:])}")
            return served[0]
        if requested not in served:
            raise ModelError(
                f"The server at {self.address} has no model {requested!r}.{did_you_mean(requested, served)}",
                hint=f"It serves: {', '.join(served) or 'nothing'}.",
            )
        return requested

    def models(self) -> list[str]:
        """Names of all models, adapters first: they are what was trained. vLLM tells them by their `parent`."""
        listed = self._json("/v1/models", None, tries=1)
        try:
            return [str(model["id"]) for model in sorted(listed["data"], key=lambda model: not model.get("parent"))]
        except (KeyError, TypeError, AttributeError):
            raise self._not_openai() from None

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a request that is tried again while the server is busy or the connection breaks."""
        return self._json(path, body or {}, tries=_TRIES)

    def tell(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a command whose answer says nothing more; it is tried again like a request."""

        def read() -> None:
            with self._open(path, body or {}) as response:
                response.read()

        self._tried(read, _TRIES)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """Yield the JSON of server-sent events, as they come."""
        try:
            with self._tried(lambda: self._open(path, body), _TRIES) as response:
                for line in response:
                    text = line.decode().strip()
                    if text.startswith("data:") and (data := text.removeprefix("data:").strip()) != "[DONE]":
                        event = json.loads(data)
                        if "error" in event:
                            raise ModelError(f"The server at {self.address} failed: {_message_of(event)}")
                        yield event
        except ValueError as cause:
            raise self._not_openai() from cause
        except _BROKEN as cause:
            raise self._lost(cause) from cause

    def _json(self, path: str, body: dict[str, Any] | None, *, tries: int) -> Any:
        def read() -> bytes:
            with self._open(path, body) as response:
                whole: bytes = response.read()
                return whole

        answer = self._tried(read, tries)
        try:
            return json.loads(answer or b"null")
        except ValueError as cause:
            raise self._not_openai() from cause

    def _open(self, path: str, body: dict[str, Any] | None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, self._headers)
        response: HTTPResponse = self._opener.open(request, timeout=_TIMEOUT)
        return response

    def _tried(self, request: Callable[[], T], tries: int) -> T:
        for left in range(tries - 1, -1, -1):
            try:
                return request()
            except urllib.error.HTTPError as error:
                if error.code not in _BUSY or not left:
                    raise self._complaint(error) from error
            except _BROKEN as cause:
                if not left:
                    raise self._lost(cause) from cause
            time.sleep(min(8.0, 0.5 * 2 ** (tries - 1 - left)))
        raise AssertionError("the last try returns or raises")

    def _complaint(self, error: urllib.error.HTTPError) -> SwiftError:
        """Return the error that a failed request means."""
        message = _message_of(_parsed(error))
        if error.code in (401, 403):
            return UsageError(
                f"The server at {self.address} rejects the API key, or requires one.",
                hint=f"Give it with --api-key, or in the environment: {API_KEYS[0]}=...",
            )
        if error.code == 404 and not message:
            return self._not_openai()
        if error.code in (400, 404, 413, 422):
            return DataError(f"The server at {self.address} refuses a question: {message or error.reason}")
        return ModelError(
            f"The server at {self.address} failed with {error.code}: {message or error.reason}",
            hint="Look at the server's log.",
        )

    def _lost(self, cause: BaseException) -> SwiftError:
        reason = getattr(cause, "reason", None) or cause
        if isinstance(reason, ConnectionRefusedError):
            return ModelError(
                f"There is no server at {self.address}.",
                hint="Start one (swift serve MODEL), and wait until it says that it is ready.",
            )
        return ModelError(
            f"The server at {self.address} cannot be reached: {reason or type(cause).__name__}",
            hint="Check the address, and whether the server is still there.",
        )

    def _not_openai(self) -> SwiftError:
        return ModelError(
            f"What answers at {self.address} does not speak OpenAI's API.",
            hint="Give the address of a server such as that of swift serve, without a path.",
        )


def at_once(work: Callable[[int], Any], places: Sequence[int], most: int) -> Iterator[tuple[int, Any]]:
    """Yield (index, result of `work`) in the order of completion, from at most `most` threads.

    The first failure ends all of them. The threads end with the process: Ctrl-C does not wait for a server.
    """
    waiting: Queue[int] = Queue()
    done: Queue[tuple[int, Any, BaseException | None]] = Queue()
    stopped = Event()
    for place in places:
        waiting.put(place)

    def run() -> None:
        while not stopped.is_set() and not waiting.empty():
            try:
                place = waiting.get_nowait()
            except Exception:  # another thread took the last one
                return
            try:
                done.put((place, work(place), None))
            except BaseException as failure:
                stopped.set()
                done.put((place, None, failure))

    for _ in range(min(most, len(places))):
        Thread(target=run, daemon=True).start()
    try:
        for _ in places:
            place, result, failure = done.get()
            if failure is not None:
                raise failure
            yield place, result
    finally:
        stopped.set()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(error: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(error.read())
    except (ValueError, OSError):
        return None


def _message_of(answer: Any) -> str:
    """Return the message in an error of OpenAI's API, or of one that resembles it."""
    if isinstance(answer, dict):
        for found in (answer.get("error"), answer.get("detail"), answer.get("message")):
            if isinstance(found, dict):
                found = found.get("message")
            if isinstance(found, str) and found and found != "Not Found":
                return found.strip()
    return ""
