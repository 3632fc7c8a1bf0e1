"""One encoded sample for people to look at: what is learned, and what is only read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from swift.data.encodings import Encoding
from swift.data.media import MediaRef
from swift.data.media_tokens import described
from swift.data.samples import Encoded, Segment


@dataclass(frozen=True)
class PreviewPiece:
    """Neighbouring tokens of the same weight as one text, or an image."""

    weight: float
    text: str
    ids: tuple[int, ...]
    media: MediaRef | None = None


@dataclass(frozen=True)
class PreviewSegment:
    """One segment of a sample, as text."""

    name: str
    tokens: int
    learned: int
    """How many of the tokens are learned."""
    pieces: tuple[PreviewPiece, ...]


def preview(tokenizer: Any, encoded: Encoded, encoding: Encoding) -> Group:
    """Return a sample with learned text highlighted, the rest dim, with token ids and counts.

    Without colours the marks ⟦ ⟧ remain.
    """
    parts: list[Text] = []
    for segment in preview_segments(tokenizer, encoded, encoding):
        parts += _colored(segment)
    if encoded.values:
        parts.append(Text(", ".join(f"{name} {value:g}" for name, value in encoded.values.items())))
    return Group(*parts)


def preview_segments(tokenizer: Any, encoded: Encoded, encoding: Encoding) -> list[PreviewSegment]:
    """Return the segments of a sample as parts, cut where what is learned begins and ends."""
    names = encoding.segment_names
    named = zip(chain(names, repeat(names[-1])), encoded.segments, strict=False)
    return [
        PreviewSegment(name, len(segment), int(np.count_nonzero(segment.weights)), tuple(_pieces(tokenizer, segment)))
        for name, segment in named
    ]


def _colored(segment: PreviewSegment) -> list[Text]:
    text = Text()
    for piece in segment.pieces:
        if piece.media is not None:
            held = piece.media
            text.append(f"[{held.kind} {described(held)} → {held.length} tokens: {held.source}]", "cyan")
        elif piece.weight:
            marked = f"⟦{piece.text}⟧" if piece.weight == 1 else f"⟦{piece.weight:g}: {piece.text}⟧"
            text.append(marked, style="bold green")
        else:
            text.append(piece.text, style="dim")
    ids = Text(" ".join(_ids(segment)), style="dim")
    heading = f"{segment.name}: {segment.tokens} tokens, {segment.learned} learned (in ⟦ ⟧)"
    return [Text(heading, style="bold"), text, Text("ids: ") + ids]


def _pieces(tokenizer: Any, segment: Segment) -> Iterator[PreviewPiece]:
    start = 0
    for each in segment.media:
        yield from _sequences(tokenizer, segment, start, each.start)
        yield PreviewPiece(0.0, "", (), each)
        start = each.start + each.length
    yield from _sequences(tokenizer, segment, start, len(segment))


def _sequences(tokenizer: Any, segment: Segment, start: int, end: int) -> Iterator[PreviewPiece]:
    pairs = zip(segment.weights[start:end].tolist(), segment.input_ids[start:end].tolist(), strict=True)
    for weight, run in groupby(pairs, key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        yield PreviewPiece(weight, text, tuple(ids))


def _ids(segment: PreviewSegment) -> Iterator[str]:
    """Yield the token ids, those of an image as how many they are."""
    for piece in segment.pieces:
        if piece.media is not None:
            yield f"[{piece.media.length}]"
        yield from map(str, piece.ids)
