"""One encoded sample for people to look at: what is learned, and what is only read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from swift.data.encodings import Encoding
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
        part = tokenizer.decode(run, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if weight:
            text.append(f"⟦{part}⟧" if weight == 1 else f"⟦{weight:g}: {part}⟧", style="bold green")
        else:
            text.append(part, style="dim")
    ids = Text(" ".join(map(str, segment.input_ids.tolist())), style="dim")
    return [Text(f"{name}: {len(segment)} tokens, {learned} learned (in ⟦ ⟧)", style="bold"), text, Text("ids: ") + ids]


def _runs(segment: Segment) -> Iterator[tuple[float, list[int]]]:
    """Neighbouring tokens of the same weight."""
    pairs = zip(segment.weights.tolist(), segment.input_ids.tolist(), strict=True)
    for weight, run in groupby(pairs, key=lambda pair: pair[0]):
        yield weight, [token for _, token in run]
