"""A chat engine for servers with OpenAI's API, which use their own chat template and tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from swift.contracts import Sampling
from swift_infer.image_messages import for_servers
from swift_infer.openai_server import OpenAiServer, at_once
from swift_infer.questions import Question, with_system
from swift_infer.response import Messages, Response

AT_A_TIME = 16
"""Concurrent requests by default."""


class RemoteChatEngine:
    """Implements `swift_infer.response.ChatEngine`."""

    multi_turn = True
    reads_images = True  # the server rejects images that its model does not read

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        system: str | None = None,
        at_a_time: int | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._server = OpenAiServer(address, api_key)
        self._system = system
        self._at_a_time = at_a_time or AT_A_TIME
        self._template_arguments = dict(template_arguments or {})
        self.name = self._server.choose(model, say)

    def respond(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Response]]:
        """Send a limited number of requests at a time."""

        def ask(index: int) -> Response:
            question = questions[index]
            body = self._body(question.messages, sampling, index)
            if question.tools:
                body["tools"] = list(question.tools)
            response = self._server.post("/v1/chat/completions", body)
            choice = self._server.field(response, "choices", 0, kind=dict)
            message = self._server.field(choice, "message", kind=dict)
            content, reason = message.get("content"), choice.get("finish_reason")
            return Response(
                self._server.field(message, "content", kind=str) if content is not None else "",
                self._server.field(choice, "finish_reason", kind=str) if reason is not None else "stop",
            )

        yield from at_once(ask, range(len(questions)), self._at_a_time)

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Stream server-sent events."""
        yield from self._server.pieces(self._body(messages, sampling, 0), tokens=sampling.max_new_tokens)

    def close(self) -> None:
        """Do nothing."""

    def _body(self, messages: Messages, sampling: Sampling, index: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": for_servers(with_system(messages, self._system)),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        # Sent only where they differ from the default: servers other than vLLM and SGLang may know `stop` alone.
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.repetition_penalty != 1:
            body["repetition_penalty"] = sampling.repetition_penalty
        if self._template_arguments:
            body["chat_template_kwargs"] = self._template_arguments
        if sampling.temperature > 0:
            body["seed"] = sampling.seed_of(index) & 0x7FFFFFFF  # every server takes 31 bits
        return body
