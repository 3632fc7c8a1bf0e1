"""From an understood row to encoded samples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from swift.config.sections import DataSection
from swift.data.conversation import Conversation, Unusable
from swift.data.formats import Sample
from swift.data.offsets import Completion, Raw, Text, TextEncoder, check_offsets
from swift.data.samples import Encoded, Segment
from swift.data.template import ChatTemplate, Rendered, Span
from swift.errors import ConfigError, DataError, ModelError

ENCODER_VERSION = 1
"""Part of the cache's key: raise it when the same row is to be encoded differently."""

Encoding = Literal["text", "chat", "preference", "unpaired"]

_CHARACTERS = 1 << 18
"""So many are tokenised at once: enough to make the calls cheap, few enough to be held beside the tokens."""


@dataclass(frozen=True)
class Pieces:
    """What became of a row: mostly one encoded sample."""

    samples: tuple[Encoded, ...]
    turn_by_turn: bool = False
    """True when the chat template made several texts of one conversation."""


Understood = tuple[Sample, str, Sample | None]
"""A row that is understood, its place, and the row after it, which only 'unpaired' needs."""

_Result = TypeVar("_Result")
_Steps = Generator[Sequence[Text], list[Segment], _Result]
"""What is to be done for a row: it stops where it needs texts tokenised, so that those of many rows go together."""


class _Row:
    """One row on its way: the texts that it waits for, or what became of it."""

    def __init__(self, steps: _Steps[Pieces]) -> None:
        self._steps = steps
        self.asked: Sequence[Text] = ()
        self.made: Pieces | Unusable | None = None
        self._to(lambda: next(steps))

    def go_on(self, segments: list[Segment]) -> None:
        """Hands it what it asked for."""
        if self.made is None:
            self._to(lambda: self._steps.send(segments))

    def _to(self, step: Callable[[], Sequence[Text]]) -> None:
        self.asked = ()
        try:
            self.asked = step()
        except StopIteration as done:
            self.made = done.value
        except Unusable as unusable:
            self.made = unusable


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
        self._tokens = TextEncoder(tokenizer)
        self._limits = self.template.limits if self.template else nullcontext
        by_encoding = {"text": "all", "chat": "assistant"}
        self._loss_on = by_encoding.get(encoding, "last_round") if section.loss_on == "auto" else section.loss_on

    def encode(self, sample: Sample, place: str, following: Sample | None = None) -> Pieces:
        """Raises `Unusable` when there is nothing to learn from this sample.

        `following` is the next sample of the data set, whose answer 'unpaired' sets against this prompt.
        """
        (made,) = self.encode_many([(sample, place, following)])
        if isinstance(made, Unusable):
            raise made
        return made

    def encode_many(self, rows: Iterable[Understood]) -> Iterator[Pieces | Unusable]:
        """Encodes rows in order, many at once; rows are taken from the iterator as they are needed."""
        waiting = iter(rows)
        while group := self._begin(waiting):
            while any(row.asked for row in group):
                segments = iter(self._tokens.segments([text for row in group for text in row.asked]))
                with self._limits():
                    for row in group:
                        row.go_on([next(segments) for _ in row.asked])
            yield from (row.made for row in group if row.made is not None)

    def _begin(self, rows: Iterator[Understood]) -> list[_Row]:
        """Rows until there is enough to tokenise, each as far as it asks for tokens."""
        group = []
        characters = 0
        with self._limits():
            for sample, place, following in rows:
                row = _Row(self._steps(sample, place, following))
                group.append(row)
                characters += sum(map(_size, row.asked))
                if characters >= _CHARACTERS:
                    break
        return group

    def _steps(self, sample: Sample, place: str, following: Sample | None) -> _Steps[Pieces]:
        if self.encoding == "preference":
            return (yield from self._pair(sample, place))
        if self.encoding == "unpaired":
            return (yield from self._unpaired(sample, place, following or sample))
        segments = yield from self._segments(sample.conversation, place)
        cut = [part for segment in segments for part in self._fit(segment)]
        learned = [part for part in cut if part.weights.any()]
        if not learned:
            raise Unusable("nothing to learn", "no token of the answers counts")
        samples = tuple(Encoded(0, (part,)) for part in learned)
        return Pieces(samples, turn_by_turn=len(segments) > 1)

    def _pair(self, sample: Sample, place: str) -> _Steps[Pieces]:
        if sample.rejected is None:
            raise ValueError("a pair needs a rejected conversation")
        chosen = yield from self._one(sample.conversation, place)
        rejected = yield from self._one(sample.rejected, place)
        return self._scored([chosen, rejected], sample)

    def _unpaired(self, sample: Sample, place: str, following: Sample) -> _Steps[Pieces]:
        own, other = sample.conversation, following.conversation
        answer = other.messages[other.last_round :]
        messages = (*own.messages[: own.last_round], *answer)
        mixed = replace(own, messages=messages, weights=(1.0,) * len(messages))
        # The mismatched answer only estimates a divergence: it may be cut, whatever happens to long samples.
        mismatched = _first((yield from self._segments_or_one(mixed, place)), self.section.max_length)
        return self._scored([(yield from self._one(own, place)), mismatched], sample)

    def _scored(self, segments: list[Segment], sample: Sample) -> Pieces:
        if not all(segment.weights.any() for segment in segments):
            raise Unusable("nothing to learn", "no token of an answer counts")
        return Pieces((Encoded(0, tuple(segments), values=dict(sample.values)),))

    def _one(self, conversation: Conversation, place: str) -> _Steps[Segment]:
        return self._fit((yield from self._segments_or_one(conversation, place)))[0]

    def _segments_or_one(self, conversation: Conversation, place: str) -> _Steps[Segment]:
        segments = yield from self._segments(conversation, place)
        if len(segments) > 1:
            raise _several_texts(place)
        return segments[0]

    def _segments(self, conversation: Conversation, place: str) -> _Steps[list[Segment]]:
        return (yield self._texts(conversation, place))

    def _texts(self, conversation: Conversation, place: str) -> Sequence[Text]:
        if conversation.plain and (len(conversation.messages) == 1 or self.template is None):
            return [self._plain(conversation)]
        if self.encoding == "text" and len(conversation.messages) == 1:
            return [Raw(conversation.messages[0]["content"])]
        if self.template is None:
            raise ModelError(
                f"{place}: this is a conversation, and the tokenizer has no chat template to write it with.",
                hint="Give one with --model.chat_template FILE, or learn raw text with `swift pt`.",
            )
        conversation = self._with_system(conversation)
        if self._loss_on == "all":
            return [self._whole(self.template, conversation, place)]
        turns = self._turns(conversation)
        if not turns:
            raise Unusable("nothing to learn", "every answer carries a loss of 0")
        return self.template.render(conversation, turns, place)

    def _whole(self, template: ChatTemplate, conversation: Conversation, place: str) -> Rendered:
        """All of the text is learned; answers that carry a loss of their own keep it."""
        own = [index for index, weight in enumerate(conversation.weights) if weight != 1.0]
        own = [index for index in own if conversation.messages[index]["role"] == "assistant"]
        texts = template.render(conversation, own, place)
        if len(texts) > 1:
            raise _several_texts(place)
        return Rendered(texts[0].text, (Span(0, len(texts[0].text), 1.0), *texts[0].spans))

    def _plain(self, conversation: Conversation) -> Text:
        texts = [message["content"] for message in conversation.messages]
        if len(texts) == 1 or self._loss_on == "all":
            return Raw("".join(texts))
        return Completion(texts[0], texts[1], conversation.weights[1])

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


def _size(text: Text) -> int:
    return len(text.text) + (len(text.prompt) if isinstance(text, Completion) else 0)


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
