"""From a conversation to segments of tokens: rendered, tokenised, weighted, and cut to the longest that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from swift.config.media import NAMES, PLURALS
from swift.config.sections import DataSection
from swift.data.conversation import Conversation, Unusable, parts_of, text_of
from swift.data.media_tokens import MediaTokens
from swift.data.samples import Segment
from swift.data.template import ChatTemplate
from swift.data.text import Raw, Rendered, Span, Steps, Text
from swift.errors import DataError, ModelError

LossOn = Literal["all", "assistant", "last_round"]
"""Which answers are learned: all of the text, every answer of the assistant, or the last one."""


class ConversationEncoder:
    """Encodes conversations for one tokenizer as the `data` section says; what an encoding makes its segments with.

    `segments`, `segment` and `beginning` are steps of an encoding: call them by `yield from`.
    """

    def __init__(
        self, tokenizer: Any, section: DataSection, loss_on: LossOn, images: MediaTokens | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.section = section
        self.images = images
        """What makes tokens of images; None for a model that reads text alone."""
        parts = images is not None
        self.template = (
            ChatTemplate(tokenizer, section.template_kwargs, parts=parts) if tokenizer.chat_template else None
        )
        self.limits = self.template.limits if self.template else nullcontext
        self._loss_on = loss_on

    def segments(self, conversation: Conversation, location: str) -> Steps[list[Segment]]:
        """Return the tokens of a conversation, however many: several where the template rewrites earlier turns."""
        conversation = self.with_images(conversation)
        sequences = self._sequences(conversation, location)
        return (yield [self.with_media(text, conversation) for text in sequences])

    def segment(self, conversation: Conversation, location: str) -> Steps[Segment]:
        """Return the tokens of a conversation as one segment within data.max_length."""
        return self.fit((yield from self._whole_segment(conversation, location)))[0]

    def beginning(self, conversation: Conversation, location: str) -> Steps[Segment]:
        """Return as much of a conversation as fits into data.max_length, whatever happens to long samples."""
        return _slice((yield from self._whole_segment(conversation, location)), 0, self.section.max_length)

    def prompt(self, conversation: Conversation, location: str) -> Steps[Segment]:
        """Return the tokens up to where the assistant is about to speak, within data.max_length.

        Without a chat template, the conversation is one text, which the model continues.
        """
        (segment,) = yield [self.prompt_text(conversation, location)]
        return self.fit(segment)[0]

    def prompt_text(self, conversation: Conversation, location: str) -> Text:
        """Return what `prompt` tokenises."""
        conversation = self.with_images(conversation)
        if self.template is None:
            if len(conversation.messages) != 1:
                raise Unusable("no chat template", "several messages, and the tokenizer has no template to write them")
            text: Text = Raw(str(conversation.messages[0]["content"]), end=False)
        else:
            text = self.template.prompt(self.without_learning(conversation), location)
        return self.with_media(text, conversation)

    def fit(self, segment: Segment) -> list[Segment]:
        """Return the segment within data.max_length, as data.truncation says; raise `Unusable` for delete."""
        longest = self.section.max_length
        if len(segment) <= longest:
            return [segment]
        match self.section.truncation:
            case "right":
                return [_slice(segment, 0, longest)]
            case "left":
                return [_slice(segment, len(segment) - longest, len(segment))]
            case "split" if segment.media:
                raise Unusable("too long", f"{len(segment)} tokens, and what holds images is not split")
            case "split":
                return [_slice(segment, at, at + longest) for at in range(0, len(segment), longest)]
        raise Unusable("too long", f"{len(segment)} tokens, and data.max_length is {longest}")

    def with_images(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the images of its videos in it; `Unusable` where the model reads text alone."""
        if self.images is not None:
            return self.images.with_images_of_videos(conversation)
        if conversation.media:
            kind = conversation.media[0].kind
            raise Unusable(f"holds {NAMES[kind]}s", f"this model reads no {PLURALS[kind]}: the model reads text alone")
        return conversation

    def with_media(self, text: Text, conversation: Conversation) -> Text:
        """Return a text in which the media of its conversation are what the model's processor makes of them."""
        if self.images is None:
            return text
        if isinstance(text, Rendered):
            return self.images.expand(text, conversation.media)
        if conversation.media:
            raise Unusable("no chat template", "images or audio need a chat template")
        return text

    def _whole_segment(self, conversation: Conversation, location: str) -> Steps[Segment]:
        segments = yield from self.segments(conversation, location)
        if len(segments) > 1:
            raise _several_sequences(location)
        return segments[0]

    def _sequences(self, conversation: Conversation, location: str) -> Sequence[Text]:
        if conversation.plain and (len(conversation.messages) == 1 or self.template is None):
            return [self._plain(conversation)]
        if self.template is None:
            raise ModelError(
                f"{location}: this is a conversation, and the tokenizer has no chat template to write it with.",
                hint="Give one with --model.chat_template FILE, or learn raw text with `swift pt`.",
            )
        conversation = self.without_learning(conversation)
        if self._loss_on == "all":
            return [self._whole(self.template, conversation, location)]
        first = conversation.last_round if self._loss_on == "last_round" else 0
        turns = [
            index
            for index, message in enumerate(conversation.messages)
            if index >= first and message["role"] == "assistant" and conversation.weights[index] > 0
        ]
        if not turns:
            raise Unusable("nothing to learn", "the loss of every completion is 0")
        return self.template.render(conversation, turns, location)

    def _whole(self, template: ChatTemplate, conversation: Conversation, location: str) -> Rendered:
        """Return a text of which all is learned; answers that carry a loss of their own keep it."""
        own = [index for index, weight in enumerate(conversation.weights) if weight != 1.0]
        own = [index for index in own if conversation.messages[index]["role"] == "assistant"]
        sequences = template.render(conversation, own, location)
        if len(sequences) > 1:
            raise _several_sequences(location)
        return Rendered(sequences[0].text, (Span(0, len(sequences[0].text), 1.0), *sequences[0].spans))

    def _plain(self, conversation: Conversation) -> Text:
        if conversation.media and self.template is not None:
            return self._with_positions(self.template, conversation)
        strings = [text_of(message) for message in conversation.messages]
        if len(strings) == 1 or self._loss_on == "all":
            return Raw("".join(strings))
        return Raw(strings[0], strings[1], conversation.weights[1])

    def _with_positions(self, template: ChatTemplate, conversation: Conversation) -> Rendered:
        """Return a text by itself, with images where it has them, as the chat template writes images."""
        pieces = [
            part["text"] if part["type"] == "text" else template.written(part["type"])
            for message in conversation.messages
            for part in parts_of(message)
        ]
        end = self.tokenizer.eos_token_id
        frame = [each for each in self.tokenizer("")["input_ids"] if each != end]
        tokens = ["".join(self.tokenizer.convert_ids_to_tokens(frame)), *pieces, self.tokenizer.eos_token or ""]
        text = "".join(tokens)
        return Rendered(text, (Span(0, len(text), 1.0),))

    def without_learning(self, conversation: Conversation) -> Conversation:
        """Return the conversation with data.system where it has no system message, and with its objects written out."""
        if self.images is not None:
            conversation = self.images.with_objects(conversation)
        if self.section.system is None or conversation.messages[0]["role"] == "system":
            return conversation
        system = {"role": "system", "content": self.section.system}
        return replace(conversation, messages=(system, *conversation.messages), weights=(1.0, *conversation.weights))


def _several_sequences(location: str) -> DataError:
    return DataError(
        f"{location}: the chat template rewrites earlier turns, so no single sequence contains all learned tokens.",
        hint="Use --data.loss_on last_round.",
    )


def _slice(segment: Segment, start: int, end: int) -> Segment:
    start, end = _around_media(segment, start, end)
    weights = np.array(segment.weights[start:end])
    weights[:1] = 0.0
    values = {name: value[start:end] for name, value in segment.token_values.items()}
    candidates = None if segment.candidates is None else segment.candidates[start:end]
    media = tuple(replace(each, start=each.start - start) for each in segment.media if start <= each.start < end)
    return Segment(segment.input_ids[start:end], weights, values, candidates, media)


def _around_media(segment: Segment, start: int, end: int) -> tuple[int, int]:
    """Return the stretch without the images that would be in it by a part only."""
    for each in segment.media:
        last = each.start + each.length
        if each.start < start < last:
            start = last
        if each.start < end < last:
            end = max(start, each.start)
    return start, end
