"""Server of one chat model with OpenAI's API, in a process of its own that loads it as `swift chat` does.

It listens on loopback for requests with its secret, and ends after a time without requests.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from swift.contracts import Sampling
from swift.errors import DataError, SwiftError, UsageError
from swift.files import replace_file
from swift_infer import ModelOptions, open_chat_engine, question_with
from swift_ui.acting.sessions import MOST_TOKENS
from swift_ui.guard import read_object

IDLE = 1800.0
"""Seconds without a request after which the process ends, because runs may need its memory."""


class SecretRefused(UsageError):
    """A request without the secret of the dashboard's server."""


class ChatModel:
    """A loaded model that serves one request at a time."""

    def __init__(self, options: ModelOptions, secret: str) -> None:
        self.chat_engine = open_chat_engine(options, say=lambda line: print(line, flush=True))  # noqa: T201 - its log
        self._secret = secret
        self._lock = threading.Lock()
        self.last_request = time.monotonic()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ],
            exception_handlers={SwiftError: _failed},
        )

    def facts(self) -> dict[str, Any]:
        """Return name and abilities of the model for the page."""
        chat_engine = self.chat_engine
        return {
            "name": chat_engine.name,
            "multi_turn": chat_engine.multi_turn,
            "images": bool(chat_engine.reads_images),
        }

    def _check(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            raise SecretRefused("Invalid secret.")
        self.last_request = time.monotonic()

    def _models(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse({"object": "list", "data": [{"id": self.chat_engine.name, "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        self._check(request)
        messages, sampling = parse_request(await read_object(request))
        return StreamingResponse(self._events(messages, sampling), media_type="text/event-stream")

    def _events(self, messages: list[dict[str, Any]], sampling: Sampling) -> Iterator[str]:
        """Stream the response as server-sent events."""
        with self._lock:
            try:
                for piece in self.chat_engine.stream(messages, sampling):
                    yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
            except SwiftError as error:
                yield _event({"error": {"message": str(error)}})
            self.last_request = time.monotonic()
        yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, 401 if isinstance(error, SecretRefused) else 400)


def parse_request(request: dict[str, Any]) -> tuple[list[dict[str, Any]], Sampling]:
    """Return the messages and the sampling settings of a request."""
    try:
        messages = [parse_message(each) for each in request["messages"]]
        sampling = Sampling(
            max_new_tokens=min(int(request.get("max_tokens") or 512), MOST_TOKENS),
            temperature=float(request.get("temperature") or 0.0),
            top_p=float(request.get("top_p") or 1.0),
            seed=int(request.get("seed") or 0),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise DataError("A message or a setting of the request does not have the type of OpenAI's API.") from None
    valid = math.isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
    if not messages or sampling.max_new_tokens < 1 or not valid or not 0 <= sampling.seed < 1 << 63:
        raise DataError("The request has no messages, or max_tokens, temperature, top_p or seed is out of range.")
    return messages, sampling


def parse_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of OpenAI's API in swift's format. Images must be data URLs, never paths or addresses."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": str(message["role"]), "content": content}
    text = "".join(str(part["text"]) for part in content if part["type"] == "text")
    images = [str(part["image_url"]["url"]) for part in content if part["type"] == "image_url"]
    if any(not url.startswith("data:image/") for url in images):
        raise UsageError("Images must be passed as data:image/... URLs.")
    return dict(question_with(text, images))


def _end_when_idle(model: ChatModel) -> None:
    while time.monotonic() - model.last_request < IDLE:
        time.sleep(5)
    os._exit(0)


def main() -> int:
    """Load the model of the arguments, write its port to facts.json, and serve it."""
    folder = Path(os.environ["SWIFT_UI_JOB"])
    secret = (folder / "secret").read_text()
    try:
        options = json.loads(sys.argv[1])
        model = ChatModel(ModelOptions.model_validate(options), secret)
    except SwiftError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    with socket.create_server(("127.0.0.1", 0)) as listening:
        replace_file(folder / "facts.json", json.dumps({**model.facts(), "port": listening.getsockname()[1]}))
        threading.Thread(target=_end_when_idle, args=(model,), daemon=True).start()
        config = uvicorn.Config(model.app(), ws="none", lifespan="off", log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
