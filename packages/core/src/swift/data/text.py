"""Texts on their way to tokens, and which stretches of them are learned."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from swift.data.media import MediaRef
    from swift.data.samples import Segment


@dataclass(frozen=True)
class Span:
    """Characters from `start` to `end`, which the assistant says."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True)
class MediaSpan:
    """Characters from `start` to `end`, which stand for an image."""

    start: int
    end: int
    media: MediaRef


@dataclass(frozen=True)
class Rendered:
    """A text and the stretches of it that are learned, in order."""

    text: str
    spans: tuple[Span, ...]
    media: tuple[MediaSpan, ...] = ()
    """The characters that stand for images, in order."""


@dataclass(frozen=True)
class Raw:
    """Text without a template, begun as the tokenizer begins it; all of it is learned, or its completion alone."""

    text: str
    completion: str | None = None
    """What stands behind the text, and is learned instead of it."""
    weight: float = 1.0
    """Of the completion."""
    end: bool = True
    """Whether the end-of-text token comes last, also where the tokenizer does not add it."""


@dataclass(frozen=True)
class Pair:
    """Two texts that the tokenizer joins, with special tokens around and between them; all of it is learned."""

    text: str
    second: str


Text = Rendered | Raw | Pair

Result = TypeVar("Result")
Steps = Generator[Sequence[Text], "list[Segment]", Result]
"""The work on one row. It stops where it needs texts tokenised, so that the texts of many rows are tokenised together,
and resumes with their tokens."""
