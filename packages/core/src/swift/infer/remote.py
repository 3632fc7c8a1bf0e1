"""A server that speaks OpenAI's API, asked with messages: its own chat template counts, and its own tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from swift.contracts import Sampling
from swift.infer.answers import Answer, Messages
from swift.infer.image_messages import for_servers
from swift.infer.openai_server import OpenAiServer, at_once
from swift.infer.questions import Question, with_system

AT_A_TIME = 16
"""Requests under way at once where nothing else is said."""


class RemoteChatEngine:
    """Implements `swift.infer.answers.Speaker`."""

    multi_turn = True
    reads_images = True  # as far as is known here: the server refuses what its model does not read

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

    def answers(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Answer]]:
        """Yield a bounded number of requests at a time."""

        def ask(place: int) -> Answer:
            question = questions[place]
            body = self._body(question.messages, sampling, place)
            if question.tools:
                body["tools"] = list(question.tools)
            answer = self._server.post("/v1/chat/completions", body)
            choice = self._server.found(answer, "choices", 0, kind=dict)
            message = self._server.found(choice, "message", kind=dict)
            said, ended = message.get("content"), choice.get("finish_reason")
            return Answer(
                self._server.found(message, "content", kind=str) if said is not None else "",
                self._server.found(choice, "finish_reason", kind=str) if ended is not None else "stop",
            )

        yield from at_once(ask, range(len(questions)), self._at_a_time)

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Stream server-sent events."""
        yield from self._server.pieces(self._body(messages, sampling, 0), tokens=sampling.max_new_tokens)

    def close(self) -> None:
        """There is nothing to close."""

    def _body(self, messages: Messages, sampling: Sampling, place: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": for_servers(with_system(messages, self._system)),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        # Only where they say something: the first is OpenAI's, the others are known to vLLM, SGLang and their like.
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.repetition_penalty != 1:
            body["repetition_penalty"] = sampling.repetition_penalty
        if self._template_arguments:
            body["chat_template_kwargs"] = self._template_arguments
        if sampling.temperature > 0:
            body["seed"] = sampling.seed_of(place) & 0x7FFFFFFF  # what every server can read
        return body
