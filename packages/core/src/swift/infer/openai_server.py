"""Requests to a server that speaks OpenAI's API.

Spoken with the standard library alone: huggingface_hub brings an HTTP library to core, but another one in its next
major version, and a few requests of JSON need none.
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
from swift.infer.http_client import (
    BROKEN,
    RequestRefused,
    opener_without_redirects,
    read_response,
    response_lines,
    with_timeout,
)
from swift.infer.json_fields import LOOK, json_field, json_numbers, unexpected_value
from swift.untrusted import is_unicode

API_KEYS = ("SWIFT_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the key, the first that is set counts."""
_TRIES = 6
_BUSY = frozenset({429, 502, 503, 504})
_TIMEOUT = 600.0
"""Seconds that an answer may take, or the next event of one that is streamed."""
_EVENTS = 16
"""Events of a stream for each token: some servers send letters. And so many more."""
_MORE_EVENTS = 1000
T = TypeVar("T")


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
        self._opener = opener_without_redirects(proxies)

    def choose(self, requested: str | None, say: Callable[[str], None]) -> str:
        """Return the name that requests use; if none is requested, the first adapter or else the first model."""
        served = self.models()
        if requested is None:
            if not served:
                raise ModelError(f"The server at {self.address} serves no model.", hint=LOOK)
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
            told = [(bool(model.get("parent")), model["id"]) for model in listed["data"]]
        except (KeyError, TypeError, AttributeError):
            raise self._not_openai() from None
        if not all(isinstance(name, str) and is_unicode(name) for _, name in told):
            raise self._not_openai()
        return [name for _, name in sorted(told, key=lambda each: not each[0])]

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a request that is tried again while the server is busy or the connection breaks."""
        return self._json(path, body or {}, tries=_TRIES)

    def send(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a command whose answer says nothing more; it is tried again like a request."""
        self._asked(path, body or {}, _TRIES)

    def events(self, path: str, body: dict[str, Any], *, tokens: int = 1 << 20) -> Iterator[dict[str, Any]]:
        """Yield the JSON of server-sent events about an answer of at most so many tokens, as they come."""
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
                        f"The server at {self.address} sends more than {most} events for an answer of {tokens} tokens.",
                        hint=LOOK,
                    )
                yield event
        except BROKEN as cause:
            raise self._lost(cause) from cause

    def pieces(self, body: dict[str, Any], *, tokens: int) -> Iterator[str]:
        """Yield the text of an answer to a conversation as it comes."""
        for event in self.events("/v1/chat/completions", {**body, "stream": True}, tokens=tokens):
            for choice in self.choices(event):
                delta = self.field(choice, "delta", kind=dict)
                if delta.get("content") is not None:
                    yield self.field(delta, "content", kind=str)

    def field(self, answer: Any, *place: str | int, kind: type | None = None) -> Any:
        """Return what stands at a place of an answer of this server; see `swift.infer.json_fields`."""
        return json_field(self.address, answer, *place, kind=kind)

    def numbers(self, answer: Any, *place: str | int, kind: type[int] | type[float] = float) -> list[Any]:
        """Return the numbers that stand at a place of an answer of this server."""
        return json_numbers(self.address, answer, *place, kind=kind)

    def unexpected(self, place: str, told: str) -> ModelError:
        """Return the error about something in an answer that cannot be meant."""
        return unexpected_value(self.address, place, told)

    def choices(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the choices of an event; one that tells of something else has none."""
        if event.get("choices") is None:
            return []
        count = len(self.field(event, "choices", kind=list))
        return [self.field(event, "choices", number, kind=dict) for number in range(count)]

    def _events(self, request: urllib.request.Request) -> Iterator[Any]:
        """Yield nothing (None) once the answer has begun, and then what its events say.

        They end with '[DONE]', which some servers leave out behind the event that says why the answer is over.
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
            raise ConnectionError("it ended in the middle of an answer")

    def _json(self, path: str, body: dict[str, Any] | None, *, tries: int) -> Any:
        return self._value(self._asked(path, body, tries) or b"null")

    def _value(self, text: str | bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise self._not_openai() from cause

    def _asked(self, path: str, body: dict[str, Any] | None, tries: int) -> bytes:
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
        """Return the error that a failed request means."""
        message = _message_of(_parsed(refused.body))
        if refused.leads_to:
            return UsageError(
                f"The server at {self.address} sends requests on, to {refused.leads_to}",
                hint="Give that address, without its path, if it is what you mean.",
            )
        if refused.code in (401, 403):
            return UsageError(
                f"The server at {self.address} rejects the API key, or requires one.",
                hint=f"Give it with --api-key, or in the environment: {API_KEYS[0]}=...",
            )
        if refused.code == 404 and not message:
            return self._not_openai()
        if refused.code in (400, 404, 413, 422):
            return DataError(f"The server at {self.address} refuses a question: {message or refused.reason}")
        return ModelError(
            f"The server at {self.address} failed with {refused.code}: {message or refused.reason}",
            hint=LOOK,
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


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_last(event: Any) -> bool:
    choices = event.get("choices") if isinstance(event, dict) else None
    return isinstance(choices, list) and any(isinstance(each, dict) and each.get("finish_reason") for each in choices)


def _message_of(answer: Any) -> str:
    """Return the message in an error of OpenAI's API, or of one that resembles it."""
    if isinstance(answer, dict):
        for found in (answer.get("error"), answer.get("detail"), answer.get("message")):
            if isinstance(found, dict):
                found = found.get("message")
            if isinstance(found, str) and found and found != "Not Found":
                return found.strip()
    return ""
