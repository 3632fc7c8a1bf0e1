"""Client of servers with OpenAI's API.

It uses the standard library alone: huggingface_hub brings an HTTP library to core, but another one in its next major
version, and a few requests of JSON need none.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from swift.errors import DataError, ModelError, SwiftError, UsageError, did_you_mean
from swift.untrusted import is_unicode
from swift_infer.http_client import (
    BROKEN,
    RequestRefused,
    opener_without_redirects,
    read_response,
    response_lines,
    with_timeout,
)
from swift_infer.json_fields import LOOK, json_field, json_numbers, unexpected_value

API_KEYS = ("SWIFT_API_KEY", "OPENAI_API_KEY")
"""Environment variables of the key; the first that is set counts."""
_TRIES = 6
_BUSY = frozenset({429, 502, 503, 504})
_TIMEOUT = 600.0
"""Seconds that a response may take, or the next event of a stream."""
_EVENTS = 16
"""Most events of a stream per token, as some servers send single letters, plus `_MORE_EVENTS`."""
_MORE_EVENTS = 1000
T = TypeVar("T")


class OpenAiServer:
    """Requests to one server; its failures become errors of swift."""

    def __init__(self, address: str, api_key: str | None = None) -> None:
        parts = urlsplit(address)
        if not parts.hostname:
            raise UsageError(f"Invalid server address {address!r}.", hint="For example: http://127.0.0.1:8000")
        self.address = address.rstrip("/").removesuffix("/v1")
        key = api_key or next((os.environ[name] for name in API_KEYS if os.environ.get(name)), None)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        # A proxy cannot reach this machine's loopback addresses.
        proxies = urllib.request.ProxyHandler({}) if _is_loopback(parts.hostname) else urllib.request.ProxyHandler()
        self._opener = opener_without_redirects(proxies)

    def choose(self, requested: str | None, say: Callable[[str], None]) -> str:
        """Return the name that requests use; if none is requested, the first adapter or else the first model."""
        served = self.models()
        if requested is None:
            if not served:
                raise ModelError(f"The server at {self.address} serves no model.", hint=LOOK)
            if len(served) > 1:
                say(f"Using {served[0]}. Other models of the server, for --model: {', '.join(served[1:])}")
            return served[0]
        if requested not in served:
            raise ModelError(
                f"The server at {self.address} has no model {requested!r}.{did_you_mean(requested, served)}",
                hint=f"It serves: {', '.join(served) or 'nothing'}.",
            )
        return requested

    def models(self) -> list[str]:
        """Return the names of all models, adapters first, which vLLM marks with a `parent`."""
        listed = self._json("/v1/models", None, tries=1)
        try:
            names = [(bool(model.get("parent")), model["id"]) for model in listed["data"]]
        except (KeyError, TypeError, AttributeError):
            raise self._not_openai() from None
        if not all(isinstance(name, str) and is_unicode(name) for _, name in names):
            raise self._not_openai()
        return [name for _, name in sorted(names, key=lambda each: not each[0])]

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the response to a request, retried while the server is busy or the connection breaks."""
        return self._json(path, body or {}, tries=_TRIES)

    def send(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a command and ignore the body of the response; retry like `post`."""
        self._read(path, body or {}, _TRIES)

    def events(self, path: str, body: dict[str, Any], *, tokens: int = 1 << 20) -> Iterator[dict[str, Any]]:
        """Yield the JSON of the server-sent events of a response of at most so many tokens."""
        most = _EVENTS * tokens + _MORE_EVENTS

        def opened() -> Iterator[Any]:
            events = with_timeout(lambda: self._events(self._request(path, body)), _TIMEOUT)
            next(events)
            return events

        try:
            for number, event in enumerate(self._tried(opened, _TRIES)):
                if not isinstance(event, dict):
                    raise unexpected_value(self.address, "an event", event, "an object")
                if event.get("error") is not None:
                    raise ModelError(f"The server at {self.address} failed: {_message_of(event) or LOOK}")
                if number == most:
                    raise ModelError(
                        f"The server at {self.address} sent more than {most} events for a response of {tokens} tokens.",
                        hint=LOOK,
                    )
                yield event
        except BROKEN as cause:
            raise self._lost(cause) from cause

    def pieces(self, body: dict[str, Any], *, tokens: int) -> Iterator[str]:
        """Yield the text of the response to a conversation in pieces."""
        for event in self.events("/v1/chat/completions", {**body, "stream": True}, tokens=tokens):
            for choice in self.choices(event):
                delta = self.field(choice, "delta", kind=dict)
                if delta.get("content") is not None:
                    yield self.field(delta, "content", kind=str)

    def field(self, body: Any, *path: str | int, kind: type | None = None) -> Any:
        """Return the value at a path of a response of this server; see `json_field`."""
        return json_field(self.address, body, *path, kind=kind)

    def numbers(self, body: Any, *path: str | int, kind: type[int] | type[float] = float) -> list[Any]:
        """Return the list of numbers at a path of a response of this server."""
        return json_numbers(self.address, body, *path, kind=kind)

    def unexpected(self, path: str, description: str) -> ModelError:
        """Return the error about an invalid value in a response."""
        return unexpected_value(self.address, path, description)

    def choices(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the choices of an event; other events have none."""
        if event.get("choices") is None:
            return []
        count = len(self.field(event, "choices", kind=list))
        return [self.field(event, "choices", number, kind=dict) for number in range(count)]

    def _events(self, request: urllib.request.Request) -> Iterator[Any]:
        """Yield None once the response has begun, and then its parsed events.

        They end with '[DONE]', which some servers leave out after the event with the finish reason.
        """
        is_over = False
        for line in response_lines(self._opener, request, _TIMEOUT):
            if not line:
                yield None
                continue
            text = line.decode(errors="replace").strip()
            if text.startswith("data:"):
                data = text.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                event = self._value(data)
                is_over = is_over or _is_last(event)
                yield event
        if not is_over:
            raise ConnectionError("the stream ended in the middle of a response")

    def _json(self, path: str, body: dict[str, Any] | None, *, tries: int) -> Any:
        return self._value(self._read(path, body, tries) or b"null")

    def _value(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise self._not_openai() from cause

    def _read(self, path: str, body: dict[str, Any] | None, tries: int) -> bytes:
        return self._tried(lambda: read_response(self._opener, self._request(path, body), _TIMEOUT), tries)

    def _request(self, path: str, body: dict[str, Any] | None) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(f"{self.address}{path}", data, self._headers)

    def _tried(self, request: Callable[[], T], tries: int) -> T:
        for left in range(tries - 1, -1, -1):
            try:
                return request()
            except RequestRefused as refused:
                if refused.code not in _BUSY or not left:
                    raise self._complaint(refused) from refused
            except BROKEN as cause:
                if not left:
                    raise self._lost(cause) from cause
            time.sleep(min(8.0, 0.5 * 2 ** (tries - 1 - left)))
        raise AssertionError("the last try returns or raises")

    def _complaint(self, refused: RequestRefused) -> SwiftError:
        """Return the error for an HTTP error status."""
        message = _message_of(_parsed(refused.body))
        if refused.leads_to:
            return UsageError(
                f"The server at {self.address} redirects to {refused.leads_to}",
                hint="swift follows no redirects. Pass the new address, without its path, if you trust it.",
            )
        if refused.code in (401, 403):
            return UsageError(
                f"The server at {self.address} rejected the API key, or requires one.",
                hint=f"Pass --api_key KEY, or set {API_KEYS[0]}.",
            )
        if refused.code == 404 and not message:
            return self._not_openai()
        if refused.code in (400, 404, 413, 422):
            return DataError(f"The server at {self.address} rejected the request: {message or refused.reason}")
        return ModelError(
            f"The server at {self.address} failed with {refused.code}: {message or refused.reason}",
            hint=LOOK,
        )

    def _lost(self, cause: BaseException) -> SwiftError:
        reason = getattr(cause, "reason", None) or cause
        if isinstance(reason, ConnectionRefusedError):
            return ModelError(
                f"There is no server at {self.address}.",
                hint="Start one with swift serve MODEL, and wait until it is ready.",
            )
        return ModelError(
            f"The server at {self.address} cannot be reached: {reason or type(cause).__name__}",
            hint="Check the address, and whether the server is still running.",
        )

    def _not_openai(self) -> SwiftError:
        return ModelError(
            f"The server at {self.address} does not have OpenAI's API.",
            hint="Pass the address of a server such as swift serve starts, without a path.",
        )


def at_once(work: Callable[[int], Any], indices: Sequence[int], most: int) -> Iterator[tuple[int, Any]]:
    """Yield (index, result of `work`) in the order of completion, from at most `most` threads.

    The first failure ends all of them. The threads end with the process: Ctrl-C does not wait for a server.
    """
    waiting: Queue[int] = Queue()
    done: Queue[tuple[int, Any, BaseException | None]] = Queue()
    stopped = Event()
    for index in indices:
        waiting.put(index)

    def run() -> None:
        while not stopped.is_set() and not waiting.empty():
            try:
                index = waiting.get_nowait()
            except Exception:  # another thread took the last one
                return
            try:
                done.put((index, work(index), None))
            except BaseException as failure:
                stopped.set()
                done.put((index, None, failure))

    for _ in range(min(most, len(indices))):
        Thread(target=run, daemon=True).start()
    try:
        for _ in indices:
            index, result, failure = done.get()
            if failure is not None:
                raise failure
            yield index, result
    finally:
        stopped.set()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_last(event: Any) -> bool:
    choices = event.get("choices") if isinstance(event, dict) else None
    return isinstance(choices, list) and any(isinstance(each, dict) and each.get("finish_reason") for each in choices)


def _message_of(body: Any) -> str:
    """Return the message in an error of OpenAI's API, or of one that resembles it."""
    if isinstance(body, dict):
        for found in (body.get("error"), body.get("detail"), body.get("message")):
            if isinstance(found, dict):
                found = found.get("message")
            if isinstance(found, str) and found and found != "Not Found":
                return found.strip()
    return ""
