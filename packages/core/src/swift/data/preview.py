"""One encoded sample for people to look at: what is learned, and what is only read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from swift.data.encodings import Encoding
from swift.data.media import MediaRef
from swift.data.samples import Encoded, Segment


def preview(tokenizer: Any, encoded: Encoded, encoding: Encoding) -> Group:
    """Return a sample with learned text highlighted, the rest dim, with token ids and counts.

    Without colours the marks ⟦ ⟧ remain.
    """
    parts: list[Text] = []
    names = encoding.segment_names
    for name, segment in zip(chain(names, repeat(names[-1])), encoded.segments, strict=False):
        parts += _segment(tokenizer, name, segment)
    if encoded.values:
        parts.append(Text(", ".join(f"{name} {value:g}" for name, value in encoded.values.items())))
    return Group(*parts)


def _segment(tokenizer: Any, name: str, segment: Segment) -> list[Text]:
    learned = int(np.count_nonzero(segment.weights))
    text = Text()
    for weight, run in _runs(segment):
        if isinstance(run, MediaRef):
            text.append(f"[image {run.width}×{run.height} → {run.length} tokens: {run.source}]", style="cyan")
            continue
        part = tokenizer.decode(run, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if weight:
            text.append(f"⟦{part}⟧" if weight == 1 else f"⟦{weight:g}: {part}⟧", style="bold green")
        else:
            text.append(part, style="dim")
    ids = Text(" ".join(_ids(segment)), style="dim")
    return [Text(f"{name}: {len(segment)} tokens, {learned} learned (in ⟦ ⟧)", style="bold"), text, Text("ids: ") + ids]


def _runs(segment: Segment) -> Iterator[tuple[float, list[int] | MediaRef]]:
    """Neighbouring tokens of the same weight, and pictures."""
    start = 0
    for each in segment.media:
        yield from _texts(segment, start, each.start)
        yield 0.0, each
        start = each.start + each.length
    yield from _texts(segment, start, len(segment))


def _texts(segment: Segment, start: int, end: int) -> Iterator[tuple[float, list[int] | MediaRef]]:
    pairs = zip(segment.weights[start:end].tolist(), segment.input_ids[start:end].tolist(), strict=True)
    for weight, run in groupby(pairs, key=lambda pair: pair[0]):
        yield weight, [token for _, token in run]


def _ids(segment: Segment) -> Iterator[str]:
    """Yield the token ids, those of a picture as how many they are."""
    start = 0
    for each in segment.media:
        yield from map(str, segment.input_ids[start : each.start].tolist())
        yield f"[{each.length}]"
        start = each.start + each.length
    yield from map(str, segment.input_ids[start:].tolist())
