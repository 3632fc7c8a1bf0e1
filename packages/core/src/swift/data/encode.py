"""From an understood row to encoded samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from swift.config.sections import DataSection
from swift.data.conversation import Conversation, Unusable
from swift.data.formats import Sample
from swift.data.samples import Encoded, Segment
from swift.data.template import ChatTemplate, Rendered, Span
from swift.data.tokens import check_offsets, tokenise, tokenise_completion, tokenise_raw
from swift.errors import ConfigError, DataError, ModelError

ENCODER_VERSION = 1
"""Part of the cache's key: raise it when the same row is to be encoded differently."""

Encoding = Literal["text", "chat", "preference", "unpaired"]


@dataclass(frozen=True)
class Pieces:
    """What became of a row: mostly one encoded sample."""

    samples: tuple[Encoded, ...]
    turn_by_turn: bool = False
    """True when the chat template made several texts of one conversation."""


class SampleEncoder:
    """Encodes samples for one objective and one tokenizer."""

    def __init__(self, tokenizer: Any, section: DataSection, encoding: str) -> None:
        if encoding not in get_args(Encoding):
            raise ConfigError(f"There is no encoding {encoding!r}, only {', '.join(get_args(Encoding))}.")
        if section.truncation == "split" and encoding != "text":
            raise ConfigError(
                "data.truncation is split, which cuts texts into several samples; only pt can learn from such.",
                hint="Use --data.truncation delete, right or left.",
            )
        check_offsets(tokenizer)
        self.tokenizer = tokenizer
        self.section = section
        self.encoding = encoding
        self.template = ChatTemplate(tokenizer, section.template_kwargs) if tokenizer.chat_template else None
        by_encoding = {"text": "all", "chat": "assistant"}
        self._loss_on = by_encoding.get(encoding, "last_round") if section.loss_on == "auto" else section.loss_on

    def encode(self, sample: Sample, place: str, following: Sample | None = None) -> Pieces:
        """Raises `Unusable` when there is nothing to learn from this sample.

        `following` is the next sample of the data set, whose answer 'unpaired' sets against this prompt.
        """
        if self.encoding == "preference":
            return self._pair(sample, place)
        if self.encoding == "unpaired":
            return self._unpaired(sample, place, following or sample)
        segments = self._segments(sample.conversation, place)
        cut = [part for segment in segments for part in self._fit(segment)]
        learned = [part for part in cut if part.weights.any()]
        if not learned:
            raise Unusable("nothing to learn", "no token of the answers counts")
        samples = tuple(Encoded(0, (part,)) for part in learned)
        return Pieces(samples, turn_by_turn=len(segments) > 1)

    def _pair(self, sample: Sample, place: str) -> Pieces:
        if sample.rejected is None:
            raise ValueError("a pair needs a rejected conversation")
        both = [self._one(sample.conversation, place), self._one(sample.rejected, place)]
        return self._scored(both, sample)

    def _unpaired(self, sample: Sample, place: str, following: Sample) -> Pieces:
        own, other = sample.conversation, following.conversation
        answer = other.messages[other.last_round :]
        messages = (*own.messages[: own.last_round], *answer)
        mixed = replace(own, messages=messages, weights=(1.0,) * len(messages))
        # The mismatched answer only estimates a divergence: it may be cut, whatever happens to long samples.
        mismatched = _first(self._segments_or_one(mixed, place), self.section.max_length)
        return self._scored([self._one(own, place), mismatched], sample)

    def _scored(self, segments: list[Segment], sample: Sample) -> Pieces:
        if not all(segment.weights.any() for segment in segments):
            raise Unusable("nothing to learn", "no token of an answer counts")
        return Pieces((Encoded(0, tuple(segments), values=dict(sample.values)),))

    def _one(self, conversation: Conversation, place: str) -> Segment:
        return self._fit(self._segments_or_one(conversation, place))[0]

    def _segments_or_one(self, conversation: Conversation, place: str) -> Segment:
        segments = self._segments(conversation, place)
        if len(segments) > 1:
            raise _several_texts(place)
        return segments[0]

    def _segments(self, conversation: Conversation, place: str) -> list[Segment]:
        if conversation.plain and (len(conversation.messages) == 1 or self.template is None):
            return [self._plain(conversation)]
        if self.encoding == "text" and len(conversation.messages) == 1:
            return [tokenise_raw(self.tokenizer, conversation.messages[0]["content"])]
        if self.template is None:
            raise ModelError(
                f"{place}: this is a conversation, and the tokenizer has no chat template to write it with.",
                hint="Give one with --model.chat_template FILE, or learn raw text with `swift pt`.",
            )
        conversation = self._with_system(conversation)
        if self._loss_on == "all":
            return [tokenise(self.tokenizer, self._whole(self.template, conversation, place))]
        turns = self._turns(conversation)
        if not turns:
            raise Unusable("nothing to learn", "every answer carries a loss of 0")
        return [tokenise(self.tokenizer, each) for each in self.template.render(conversation, turns, place)]

    def _whole(self, template: ChatTemplate, conversation: Conversation, place: str) -> Rendered:
        """All of the text is learned; answers that carry a loss of their own keep it."""
        own = [index for index, weight in enumerate(conversation.weights) if weight != 1.0]
        own = [index for index in own if conversation.messages[index]["role"] == "assistant"]
        texts = template.render(conversation, own, place)
        if len(texts) > 1:
            raise _several_texts(place)
        return Rendered(texts[0].text, (Span(0, len(texts[0].text), 1.0), *texts[0].spans))

    def _plain(self, conversation: Conversation) -> Segment:
        texts = [message["content"] for message in conversation.messages]
        if len(texts) == 1 or self._loss_on == "all":
            return tokenise_raw(self.tokenizer, "".join(texts))
        return tokenise_completion(self.tokenizer, texts[0], texts[1], conversation.weights[1])

    def _with_system(self, conversation: Conversation) -> Conversation:
        if self.section.system is None or conversation.messages[0]["role"] == "system":
            return conversation
        system = {"role": "system", "content": self.section.system}
        return replace(conversation, messages=(system, *conversation.messages), weights=(1.0, *conversation.weights))

    def _turns(self, conversation: Conversation) -> list[int]:
        first = conversation.last_round if self._loss_on == "last_round" else 0
        return [
            index
            for index, message in enumerate(conversation.messages)
            if index >= first and message["role"] == "assistant" and conversation.weights[index] > 0
        ]

    def _fit(self, segment: Segment) -> list[Segment]:
        """The segment within max_length, as data.truncation says."""
        longest = self.section.max_length
        if len(segment) <= longest:
            return [segment]
        fit: dict[str, Callable[[], list[Segment]]] = {
            "right": lambda: [_first(segment, longest)],
            "left": lambda: [_slice(segment, len(segment) - longest, len(segment))],
            "split": lambda: [_slice(segment, at, at + longest) for at in range(0, len(segment), longest)],
        }
        if self.section.truncation not in fit:
            raise Unusable("too long", f"{len(segment)} tokens, and data.max_length is {longest}")
        return fit[self.section.truncation]()


def _several_texts(place: str) -> DataError:
    return DataError(
        f"{place}: the chat template rewrites earlier turns, so no single text holds all that is to be learned here.",
        hint="Use --data.loss_on last_round.",
    )


def _first(segment: Segment, length: int) -> Segment:
    return _slice(segment, 0, length)


def _slice(segment: Segment, start: int, end: int) -> Segment:
    weights = np.array(segment.weights[start:end])
    weights[:1] = 0.0
    return Segment(segment.input_ids[start:end], weights)
