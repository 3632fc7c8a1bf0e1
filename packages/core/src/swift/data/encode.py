"""Encoding rows with one encoding and one tokenizer, many at once."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.conversation_tokens import ConversationEncoder
from swift.data.encodings import EncodedRow, Encoding, ReadRow, Sample
from swift.data.media_tokens import MediaTokens
from swift.data.offsets import TextEncoder, check_offsets
from swift.data.samples import Segment
from swift.data.store import columns_of, hash_of
from swift.data.template import Omissions
from swift.data.text import Pair, Raw, Steps, Text
from swift.errors import ConfigError, PluginError

_VERSION = 2
"""Part of the cache's key: raise it when the same row is to be encoded differently."""
_SETTINGS = ("system", "max_length", "truncation", "loss_on", "template_kwargs")
"""Keys of the section `data` that decide what a row becomes."""

_CHARACTERS = 1 << 18
"""So many are tokenised at once: enough to make the calls cheap, few enough to be held next to the tokens."""


class SampleEncoder:
    """Encodes samples for one objective and one tokenizer."""

    def __init__(
        self, tokenizer: Any, section: DataSection, encoding: Encoding, images: MediaTokens | None = None
    ) -> None:
        if section.truncation == "split" and not encoding.can_split:
            raise ConfigError(
                "data.truncation is split, which only pt supports: it cuts documents into several samples.",
                hint="Use --data.truncation delete, right or left.",
            )
        check_offsets(tokenizer)
        self.tokenizer = tokenizer
        self.section = section
        self.encoding = encoding
        loss_on = encoding.loss_on if section.loss_on == "auto" else section.loss_on
        self.images = images
        self._conversations = ConversationEncoder(tokenizer, section, loss_on, images)
        self._tokens = TextEncoder(tokenizer)
        self._limits = self._conversations.limits

    def identity(self) -> dict[str, Any]:
        """Return all that decides how rows become samples, as JSON, each by a name that a message can say.

        Settings are there by their flags, the rest by hashes.
        """
        tokenizer = self.tokenizer
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        settings = self.section.model_dump(mode="json", include=set(_SETTINGS))
        return {
            "the encoding": f"{self.encoding.name} {hash_of(self.encoding.cache_key())}",
            "the tokenizer": hash_of(tokenizer.backend_tokenizer.to_str(), json.dumps(special, sort_keys=True)),
            "the chat template": hash_of(str(tokenizer.chat_template)),
            "the rules for images": None if self.images is None else hash_of(self.images.cache_key()),
            "the version of the encoder": _VERSION,
            **{f"data.{name}": settings[name] for name in _SETTINGS},
        }

    @property
    def columns(self) -> list[str]:
        """Return the columns of a store of the samples."""
        return columns_of(self.encoding.values, self.encoding.token_values, media=self.images is not None)

    @property
    def ends_turns(self) -> bool:
        """Whether the chat template, if there is one, ends the assistant's turn with a special token."""
        template = self._conversations.template
        return template is None or template.ends_turns

    def take_omissions(self) -> Omissions:
        """Return what the chat template has left out of usable samples since the last call."""
        template = self._conversations.template
        return Omissions() if template is None else template.take_omissions()

    def encode(self, sample: Sample, location: str, following: Sample | None = None) -> EncodedRow:
        """Return what one row becomes; raise `Unusable` when there is nothing to learn from it.

        `following` is the next sample of the data set, for encodings that need it.
        """
        (made,) = self.encode_many([ReadRow(sample, location, following)])
        if isinstance(made, Unusable):
            raise made
        return made

    def encode_many(self, rows: Iterable[ReadRow]) -> Iterator[EncodedRow | Unusable]:
        """Encode rows in order, many at once; rows are taken from the iterator as they are needed."""
        waiting = iter(rows)
        while group := self._begin(waiting):
            while any(row.made is None for row in group):
                segments = iter(self._tokens.segments([text for row in group for text in row.requested]))
                with self._limits():
                    for row in group:
                        if row.made is None:
                            row.advance([next(segments) for _ in row.requested])
            for row in group:
                if isinstance(row.made, EncodedRow):
                    self._check(row.made)
                if row.made is not None:
                    yield row.made

    def _begin(self, rows: Iterator[ReadRow]) -> list[_RowInProgress]:
        """Return rows until there is enough to tokenise, each as far as it asks for tokens."""
        group = []
        characters = 0
        with self._limits():
            for each in rows:
                row = _RowInProgress(self.encoding.encode(each, self._conversations))
                group.append(row)
                characters += sum(map(_size, row.requested))
                if characters >= _CHARACTERS:
                    break
        return group

    def _check(self, made: EncodedRow) -> None:
        """Raise `PluginError` unless the samples are what the encoding declares."""
        encoding = self.encoding
        for sample in made.samples:
            if not encoding.segments_vary and len(sample.segments) != len(encoding.segment_names):
                raise _undeclared(encoding, f"{len(sample.segments)} segments", "segment_names", encoding.segment_names)
            for each in sample.segments:
                if each.candidates is not None or each.values or (each.media and not self.images):
                    raise PluginError(
                        f"The encoding {encoding.name!r} made a segment with more than tokens and numbers per token, "
                        "which tokenised data cannot hold.",
                        hint="Add candidates in a schedule of the objective's own (Objective.batch_schedule).",
                    )
                shapes = {name: np.shape(value) for name, value in each.token_values.items()}
                if shapes != dict.fromkeys(encoding.token_values, (len(each),)):
                    found = f"the token_values {shapes} in a segment of {len(each)} tokens"
                    raise _undeclared(encoding, found, "token_values", encoding.token_values)
            if sample.values and not sample.values.keys() <= set(encoding.values):
                raise _undeclared(encoding, f"the values {', '.join(sample.values)}", "values", encoding.values)


class _RowInProgress:
    """One row that is being encoded: the texts that it waits for, or what became of it."""

    def __init__(self, steps: Steps[EncodedRow]) -> None:
        if not isinstance(steps, Generator):
            raise _no_row(steps)
        self._steps: Generator[Sequence[Text], Any, EncodedRow] = steps
        self.requested: Sequence[Text] = ()
        self.made: EncodedRow | Unusable | None = None
        self.advance(None)

    def advance(self, segments: list[Segment] | None) -> None:
        """Go on with the tokens of the texts that the row waits for; begin with none."""
        self.requested = ()
        try:
            self.requested = self._steps.send(segments)
        except StopIteration as done:
            if not isinstance(done.value, EncodedRow):
                raise _no_row(done.value) from None
            self.made = done.value
        except Unusable as unusable:
            self.made = unusable


def _size(text: Text) -> int:
    if isinstance(text, Pair):
        return len(text.text) + len(text.second)
    return len(text.text) + (len(text.completion or "") if isinstance(text, Raw) else 0)


def _no_row(value: object) -> PluginError:
    return PluginError(
        f"encode() of an encoding returned {value!r}, where it should be a generator that returns an EncodedRow.",
        hint="segment = yield from encoder.segment(conversation, row.location), then return EncodedRow((sample,))",
    )


def _undeclared(encoding: Encoding, what: str, member: str, declared: Sequence[str]) -> PluginError:
    return PluginError(
        f"The encoding {encoding.name!r} made a sample with {what}, and declares {', '.join(declared) or 'none'}.",
        hint=f"Correct `{member}` of {type(encoding).__module__}.{type(encoding).__qualname__}.",
    )
