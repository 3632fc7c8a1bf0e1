"""The text that pictures become: placeholders of a chat template, expanded as the model's processor does it.

What a picture becomes depends on its size alone, so the header of its file is enough: nothing is decoded. That the
processor itself makes the same of the whole picture is checked on the first few.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from swift.data.conversation import Unusable
from swift.data.media import MediaRef
from swift.data.pictures import Measured, Picture, measure
from swift.data.texts import MediaSpan, Rendered, Span
from swift.errors import ModelError, SwiftError

_COMPARED = 2
"""Texts whose pictures are decoded, to compare what is counted with what the processor says."""


class PictureRules(Protocol):
    """A model's own rules for pictures, as `swift.models.pictures` takes them from its processor."""

    token: str
    """What stands for one picture in the chat template's text."""

    @property
    def tokens(self) -> frozenset[str]:
        """All that only pictures and their kin may become: nobody may write one."""

    def replacement(self, width: int, height: int) -> str:
        """Return what takes the place of `token` for a picture of this size."""

    def replacements(self, paths: Sequence[str]) -> list[str]:
        """Return the same for whole pictures, by the processor itself."""

    def fingerprint(self) -> str:
        """Return all that decides what a picture becomes."""


class PictureTokens:
    """Puts the text that pictures become into rendered conversations."""

    def __init__(self, rules: PictureRules, folder: Path, *, decode: bool = False) -> None:
        """Take the rules of a model. Pictures without a file are kept in `folder`; `decode` looks at every pixel."""
        self._rules = rules
        self._folder = folder
        self._decode = decode
        self.refusal: SwiftError | None = None
        """What to raise at the first picture, where a run cannot learn from any."""
        self._known: dict[tuple[int, int], str] = {}
        self._compared = 0

    def cache_key(self) -> str:
        """Return what decides the tokens of pictures."""
        return json.dumps([self._rules.fingerprint(), self._decode, self.refusal is not None])

    def expand(self, rendered: Rendered, pictures: Sequence[Picture]) -> Rendered:
        """Return the text with every placeholder replaced; `pictures` are those of the conversation, in order.

        A text may hold the first few of them alone. Raise `Unusable` where it holds more placeholders than pictures,
        or where a picture is missing or broken.
        """
        pieces = rendered.text.split(self._rules.token)
        count = len(pieces) - 1
        if count > len(pictures) or any(token in piece for token in self._rules.tokens for piece in pieces):
            raise Unusable(
                "a picture's own token in the text", f"somebody says {self._rules.token}, or one that is like it"
            )
        if not count:
            return rendered
        if self.refusal is not None:
            raise self.refusal
        seen = [measure(each, self._folder, decode=self._decode) for each in pictures[:count]]
        texts = [self._replacement(each.width, each.height) for each in seen]
        self._compare([each.path for each in seen], texts)
        return _joined(rendered, pieces, texts, seen, self._rules.token)

    def _replacement(self, width: int, height: int) -> str:
        if (width, height) not in self._known:
            try:
                self._known[width, height] = self._rules.replacement(width, height)
            except (ValueError, ZeroDivisionError, OverflowError) as error:
                raise Unusable("picture refused by the processor", f"{width}×{height} pixels: {error}") from None
        return self._known[width, height]

    def _compare(self, paths: Sequence[str], texts: Sequence[str]) -> None:
        """Decode the first few pictures and refuse a model whose processor makes something else of them."""
        if self._compared == _COMPARED:
            return
        self._compared += 1
        try:
            made = self._rules.replacements(paths)
        except OSError as error:
            raise Unusable("broken picture", f"{' '.join(paths)}: {error}") from None
        if made != list(texts):
            raise ModelError(
                f"The processor of this model makes {[len(each) for each in made]} characters of {', '.join(paths)}, "
                f"and {[len(each) for each in texts]} of blank pictures as large.",
                hint="Its pictures cannot be counted by their sizes: it cannot be trained with pictures yet.",
            )


def _joined(
    rendered: Rendered, pieces: Sequence[str], texts: Sequence[str], seen: Sequence[Measured], token: str
) -> Rendered:
    """Return the expanded text; spans move by what was added before them."""
    at, media = 0, []
    for piece, text, each in zip(pieces, texts, seen, strict=False):
        start = at + len(piece)
        at = start + len(text)
        reference = MediaRef("image", each.path, 0, 0, each.width, each.height, each.size)
        media.append(MediaSpan(start, at, reference))
    ends = list(accumulate(len(piece) + len(token) for piece in pieces[:-1]))
    gains = [0, *accumulate(len(text) - len(token) for text in texts)]

    def moved(place: int) -> int:
        return place + gains[sum(end <= place for end in ends)]

    spans = [Span(moved(span.start), moved(span.end), span.weight) for span in rendered.spans]
    whole = "".join(part for pair in zip(pieces, [*texts, ""], strict=True) for part in pair)
    return replace(rendered, text=whole, spans=tuple(spans), media=tuple(media))
