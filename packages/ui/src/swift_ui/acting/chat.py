"""A model that answers the page: a process of its own, which loads it as `swift chat` does and speaks OpenAI's API.

It listens on loopback, for requests with its own secret, and ends when nobody has asked it for a while.
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
from swift.infer import open_chat_engine, question_with
from swift.infer.options import ModelOptions
from swift_ui.acting.sessions import MOST_TOKENS
from swift_ui.bodies import content_of

IDLE = 1800.0
"""Seconds without a question after which the process ends: a model takes memory that a run may need."""


class SecretRefused(UsageError):
    """A request without the secret that only the dashboard's server knows."""


class SpeakingModel:
    """One loaded model, asked by one request at a time."""

    def __init__(self, options: ModelOptions, secret: str) -> None:
        self.chat_engine = open_chat_engine(options, say=lambda line: print(line, flush=True))  # noqa: T201 - its log
        self._secret = secret
        self._turn = threading.Lock()
        self.asked = time.monotonic()

    def app(self) -> Starlette:
        """Return the server."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ],
            exception_handlers={SwiftError: _failed},
        )

    def facts(self) -> dict[str, Any]:
        """Return what the page shows of the model."""
        chat_engine = self.chat_engine
        return {
            "name": chat_engine.name,
            "multi_turn": chat_engine.multi_turn,
            "images": bool(chat_engine.reads_images),
        }

    def _check(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            raise SecretRefused("The secret is not this model's.")
        self.asked = time.monotonic()

    def _models(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse({"object": "list", "data": [{"id": self.chat_engine.name, "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        self._check(request)
        messages, sampling = question_of(await content_of(request))
        return StreamingResponse(self._events(messages, sampling), media_type="text/event-stream")

    def _events(self, messages: list[dict[str, Any]], sampling: Sampling) -> Iterator[str]:
        """Yield the pieces of the answer as they come."""
        with self._turn:
            try:
                for piece in self.chat_engine.stream(messages, sampling):
                    yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
            except SwiftError as error:
                yield _event({"error": {"message": str(error)}})
            self.asked = time.monotonic()
        yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, 401 if isinstance(error, SecretRefused) else 400)


def question_of(asked: dict[str, Any]) -> tuple[list[dict[str, Any]], Sampling]:
    """Return the messages of a request, and how its answer is drawn."""
    try:
        messages = [message_of(each) for each in asked["messages"]]
        sampling = Sampling(
            max_new_tokens=min(int(asked.get("max_tokens") or 512), MOST_TOKENS),
            temperature=float(asked.get("temperature") or 0.0),
            top_p=float(asked.get("top_p") or 1.0),
            seed=int(asked.get("seed") or 0),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise DataError("A message or a setting of the request is of another kind than OpenAI's API has.") from None
    drawn = math.isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
    if not messages or sampling.max_new_tokens < 1 or not drawn or not 0 <= sampling.seed < 1 << 63:
        raise DataError("The request has no messages, or a setting that no answer can be drawn with.")
    return messages, sampling


def message_of(told: dict[str, Any]) -> dict[str, Any]:
    """Return a message of OpenAI's API as engines have it. Its images come with it, never by a path or an address."""
    content = told["content"]
    if isinstance(content, str):
        return {"role": str(told["role"]), "content": content}
    text = "".join(str(part["text"]) for part in content if part["type"] == "text")
    images = [str(part["image_url"]["url"]) for part in content if part["type"] == "image_url"]
    if any(not url.startswith("data:image/") for url in images):
        raise UsageError("An image must come with the question.")
    return dict(question_with(text, images))


def _end_when_idle(model: SpeakingModel) -> None:
    while time.monotonic() - model.asked < IDLE:
        time.sleep(5)
    os._exit(0)


def main() -> int:
    """Load the model that the arguments name, say where it listens, and answer."""
    folder = Path(os.environ["SWIFT_UI_JOB"])
    secret = (folder / "secret").read_text()
    try:
        told = json.loads(sys.argv[1])
        model = SpeakingModel(ModelOptions.model_validate(told), secret)
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
