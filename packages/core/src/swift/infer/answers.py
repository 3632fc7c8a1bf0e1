"""Questions, answers, and the interface of whoever answers conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from swift.contracts import Sampling
    from swift.infer.questions import Question

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    text: str
    finish_reason: str
    """'stop', or 'length' where it was cut off."""
    token_ids: Sequence[int] = ()
    """As they were drawn; none from a server."""


class ChatEngine(Protocol):
    """Answers conversations: an inference engine behind a chat template, or a server."""

    name: str
    """Of the model, for people."""
    multi_turn: bool
    """Whether a conversation may have several rounds. Without a chat template a model only continues a text."""

    @property
    def reads_images(self) -> bool:
        """Whether messages may hold images."""

    def answers(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Answer]]:
        """Yield (index of the question, its answer), in the order in which answers are ready."""

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Yield the text of one answer in pieces, while it is generated."""

    def close(self) -> None:
        """Free memory and stop processes."""
