"""The text that images, videos and sounds become: placeholders of a chat template, expanded as the processor does it.

What an image becomes depends on its size alone, and what a sound becomes on its length, so the header of a file is
enough: nothing is decoded. That the processor itself makes the same of the whole file is checked on the first few.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from swift.config.media import NAMES
from swift.data.audio import measure_audio
from swift.data.bounding_boxes import BoundingBox, has_objects, spelled
from swift.data.conversation import Conversation, Unusable, map_parts, media_part, medium_in
from swift.data.images import measure, path_of
from swift.data.media import MediaRef, Medium
from swift.data.text import MediaSpan, Rendered, Span
from swift.data.videos import EVENLY, VideoSampling, images_of
from swift.data.web import Web
from swift.errors import ModelError, SwiftError

_COMPARED = 2
"""Texts whose images are decoded, to compare what is counted with what the processor says; so for each kind, and for
texts with one medium and with several.
"""
_VERSION = 3
"""Raised where the same rules come to mean other tokens, or tokenised data hold something else of media."""


_Key = tuple[str, int, int, int, float]


class MediaRules(Protocol):
    """A model's own rules for images, videos and sounds, as `swift.models.media_processor` takes them."""

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Placeholders in the chat template's text, one for each kind that the model takes."""

    @property
    def tokens(self) -> frozenset[str]:
        """All that only images and their kin may become: nobody may write one."""

    def replacement(self, each: MediaRef) -> str:
        """Return the tokens that replace the placeholder, by the sizes in the header."""

    def replacements(self, seen: Sequence[MediaRef]) -> list[str]:
        """Return the same for whole files of one text, by the processor itself."""

    def of_blank(self, seen: Sequence[MediaRef]) -> list[str]:
        """Return the same for something blank as large."""

    def reference(self, text: str) -> str:
        """Return how the model reads and writes the name of an object in an image."""

    def bounding_box(self, parts: Sequence[float], each: MediaRef) -> str:
        """Return how it writes a box, whose numbers are parts of the image's width and height."""

    def lacks(self, kind: str) -> str:
        """Return why the model does not take this kind, in half a sentence."""

    def fingerprint(self) -> str:
        """Return all that decides what media become."""


class MediaTokens:
    """Puts the text that images, videos and sounds become into rendered conversations."""

    def __init__(
        self,
        rules: MediaRules,
        folder: Path,
        *,
        decode: bool = False,
        web: Web = "no",
        shown: VideoSampling = EVENLY,
        refusal_of: Callable[[str], SwiftError | None] = lambda _: None,
    ) -> None:
        """Take the rules of a model. What has no file is kept in `folder`; `decode` looks at all of every file.

        `web` says what is fetched, and `shown` which images of videos are.
        `refusal_of` says what to raise at the first medium of a kind, where a run cannot learn from any.
        """
        self._rules = rules
        self._folder = folder
        self._decode = decode
        self._web: Web = web
        self._shown = shown
        self._refusal_of = refusal_of
        self._known: dict[_Key, str] = {}
        self._known_together: dict[tuple[_Key, ...], list[str]] = {}
        self._numbered = False
        """Whether what a medium becomes depends on those before it in a text, as MiniCPM-V numbers images."""
        self._compared: Counter[tuple[str, bool]] = Counter()
        marks = "|".join(f"(?P<{kind}>{re.escape(token)})" for kind, token in rules.placeholders.items())
        self._marks = re.compile(marks)

    @property
    def kinds(self) -> frozenset[str]:
        """Which kinds of media the model takes."""
        return frozenset(self._rules.placeholders)

    def cache_key(self) -> str:
        """Return what decides the tokens of images."""
        refused = [kind for kind in self._rules.placeholders if self._refusal_of(kind) is not None]
        shown = [self._shown.fps, self._shown.most]
        return json.dumps([_VERSION, self._rules.fingerprint(), self._decode, self._web, refused, shown])

    def expand(self, rendered: Rendered, media: Sequence[Medium]) -> Rendered:
        """Return the text with every placeholder replaced; `media` are those of the conversation, in order.

        A text may hold the first few of them alone. Raise `Unusable` where it holds more placeholders than media, or
        others, or where a file is missing or broken.
        """
        for each in media:
            if each.kind not in self._rules.placeholders:
                raise Unusable(f"holds {NAMES[each.kind]}s", self._rules.lacks(each.kind))
        marks = list(self._marks.finditer(rendered.text))
        edges = [0, *(position for mark in marks for position in mark.span()), len(rendered.text)]
        pieces = [rendered.text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
        if len(marks) > len(media) or any(token in piece for token in self._rules.tokens for piece in pieces):
            token = self._rules.placeholders[marks[-1].lastgroup or ""] if marks else sorted(self._rules.tokens)[0]
            raise Unusable("an image's own token in the text", f"the text contains {token} or a similar token")
        held = media[: len(marks)]
        if [mark.lastgroup for mark in marks] != [each.kind for each in held]:
            raise Unusable("left out by the template", "the chat template writes other media than the messages hold")
        if not marks:
            return rendered
        for each in held:
            if (refusal := self._refusal_of(each.kind)) is not None:
                raise refusal
        seen = [self._measured(each) for each in held]
        replacements = self._replacements(seen)
        return _joined(rendered, pieces, replacements, seen, [mark.group() for mark in marks])

    def with_images_of_videos(self, conversation: Conversation) -> Conversation:
        """Return the conversation with images instead of the files of videos, where the model takes images."""
        if "image" not in self._rules.placeholders or all(each.kind != "video" for each in conversation.media):
            return conversation
        messages = tuple(map_parts(message, self._as_images) for message in conversation.messages)
        return replace(conversation, messages=messages)

    def _as_images(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        held = medium_in(part)
        if held is None or held.kind != "video":
            return [part]
        images = images_of(held, path_of(held, self._folder, self._web), self._shown, decode=self._decode)
        return [media_part("image", each) for each in images]

    def with_objects(self, conversation: Conversation) -> Conversation:
        """Return the conversation in which objects in images are written as the model writes them."""
        if not has_objects(conversation.messages):
            return conversation
        messages = [spelled(message, self._rules.reference, self._bounding_box) for message in conversation.messages]
        return replace(conversation, messages=tuple(messages))

    def _bounding_box(self, bbox: BoundingBox) -> str:
        seen = self._measured(bbox.image)
        return self._rules.bounding_box(bbox.parts(seen.width, seen.height), seen)

    def _measured(self, each: Medium) -> MediaRef:
        if each.kind == "audio":
            return measure_audio(path_of(each, self._folder, self._web), decode=self._decode)
        return measure(each, self._folder, decode=self._decode, web=self._web)

    def _replacements(self, seen: Sequence[MediaRef]) -> list[str]:
        """Return what takes the place of the media of a text, by the sizes in their headers."""
        if not self._numbered or len(seen) == 1:
            replacements = [self._replacement(each) for each in seen]
            if self._is_confirmed(seen, replacements):
                return replacements
            self._numbered = True
        key = tuple(_key(each) for each in seen)
        if key not in self._known_together:
            self._known_together[key] = self._rules.of_blank(seen)
        return self._known_together[key]

    def _replacement(self, each: MediaRef) -> str:
        key = _key(each)
        if key not in self._known:
            try:
                text = self._rules.replacement(each)
                if not text:
                    raise ValueError("it is too short")
            except (ValueError, ZeroDivisionError, OverflowError, MemoryError) as error:
                name, why = NAMES[each.kind], str(error) or type(error).__name__
                raise Unusable(f"{name} refused by the processor", f"{described(each)}: {why}") from None
            self._known[key] = text
        return self._known[key]

    def _is_confirmed(self, seen: Sequence[MediaRef], replacements: Sequence[str]) -> bool:
        """Decode the first few of a kind; return False if the processor's result depends on the other media of a text.

        Refuse a model whose processor makes something of files that their sizes do not tell.
        """
        cases = {(each.kind, len(seen) > 1) for each in seen}
        if all(self._compared[case] >= _COMPARED for case in cases):
            return True
        self._compared.update(cases)
        paths = " ".join(dict.fromkeys(each.source for each in seen))
        try:
            made = self._rules.replacements(seen)
        except (OSError, ValueError, MemoryError) as error:
            raise Unusable(f"broken {NAMES[seen[0].kind]}", f"{paths}: {error or 'not enough memory'}") from None
        if made == list(replacements):
            return True
        if len(seen) > 1 and made == self._rules.of_blank(seen):
            return False
        raise ModelError(
            f"The processor of this model makes {[len(each) for each in made]} characters of {paths}, "
            f"and {[len(each) for each in replacements]} of blank ones as large.",
            hint="What it makes of them cannot be counted by their sizes: it cannot be trained with them yet.",
        )


def _key(each: MediaRef) -> _Key:
    """Return what decides what a medium becomes."""
    return each.kind, each.width, each.height, *((each.frames, each.rate) if each.kind == "audio" else (0, 0.0))


def described(each: MediaRef) -> str:
    """Return what the header of a file says, for people."""
    if each.kind == "audio":
        return f"{each.frames / each.rate:.1f} s"
    moment = f" at {(each.frames - 1) / each.rate:.1f} s" if each.frames else ""
    return f"{each.width}×{each.height}{moment}"


def _joined(
    rendered: Rendered,
    pieces: Sequence[str],
    replacements: Sequence[str],
    seen: Sequence[MediaRef],
    tokens: Sequence[str],
) -> Rendered:
    """Return the expanded text; spans move by what was added before them."""
    at, media = 0, []
    for piece, text, each in zip(pieces, replacements, seen, strict=False):
        start = at + len(piece)
        at = start + len(text)
        media.append(MediaSpan(start, at, each))
    ends = list(accumulate(len(piece) + len(token) for piece, token in zip(pieces, tokens, strict=False)))
    gains = [0, *accumulate(len(text) - len(token) for text, token in zip(replacements, tokens, strict=True))]

    def moved(position: int) -> int:
        return position + gains[sum(end <= position for end in ends)]

    spans = [Span(moved(span.start), moved(span.end), span.weight) for span in rendered.spans]
    whole = "".join(part for pair in zip(pieces, [*replacements, ""], strict=True) for part in pair)
    return replace(rendered, text=whole, spans=tuple(spans), media=tuple(media))
