"""Responses of a model, and the interface of the engines that generate them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from swift.contracts import Sampling
    from swift_infer.questions import Question

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Response:
    """The response to one question."""

    text: str
    finish_reason: str
    """'stop', or 'length' where it was cut off."""
    token_ids: Sequence[int] = ()
    """The generated tokens; empty for a server."""


class ChatEngine(Protocol):
    """Responds to conversations: an inference engine behind a chat template, or a server."""

    name: str
    """Display name of the model."""
    multi_turn: bool
    """Whether a conversation may have several turns; a model without a chat template only continues a text."""

    @property
    def reads_images(self) -> bool:
        """Whether messages may hold images."""

    def respond(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Response]]:
        """Yield (index of the question, its response), in the order in which responses are complete."""

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Yield the text of one response in pieces, while it is generated."""

    def close(self) -> None:
        """Free memory and stop processes."""
