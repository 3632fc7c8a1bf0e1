"""From characters to tokens: a text is tokenised once, and the stretches to learn are found by offsets.

Many sequences are tokenised at once. Where tokens are bytes of the text, as with most current tokenizers, the lengths
of the tokens give their offsets, which is faster than the offsets of the tokenizers library. Each time it is checked
that the joined tokens equal the text; otherwise, and for other tokenizers, the library's offsets are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from swift.data.ascii_tokens import bytes_of_tokens, word_table
from swift.data.samples import TOKEN_TYPES, Segment
from swift.data.text import Pair, Raw, Rendered, Span, Text
from swift.errors import ModelError


def check_offsets(tokenizer: Any) -> None:
    """Refuse tokenizers that cannot say which characters a token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"The tokenizer {type(tokenizer).__name__} cannot tell which characters its tokens stand for.",
            hint="Convert it to a tokenizer.json, which the tokenizers library reads.",
        )


def joins_pairs(tokenizer: Any) -> bool:
    """Return whether a tokenizer joins two texts with special tokens of its own: those of encoders, which mask."""
    return tokenizer.mask_token is not None and tokenizer.num_special_tokens_to_add(pair=True) > 0


def joined_pairs(tokenizer: Any, pairs: Sequence[Pair]) -> list[Segment]:
    """Return the tokens of pairs, with the types that the tokenizer gives them: zeros where it gives none."""
    if not pairs:
        return []
    made = tokenizer([pair.text for pair in pairs], [pair.second for pair in pairs], verbose=False)
    types = made.get("token_type_ids") or [[0] * len(ids) for ids in made["input_ids"]]
    return [
        Segment(
            np.array(ids, dtype=np.int32),
            _without_first(np.ones(len(ids), dtype=np.float32)),
            {TOKEN_TYPES: np.array(kinds, dtype=np.float32)},
        )
        for ids, kinds in zip(made["input_ids"], types, strict=True)
    ]


class TextEncoder:
    """Tokenises sequences of all kinds, many at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if _is_plain(tokenizer) else None
        """None where a class of its own may do more than the tokenizers library."""
        self._ascii_tokens = word_table(tokenizer) if self._backend is not None else None
        self._bytes = bytes_of_tokens(tokenizer) if self._backend is not None else None
        self._sizes = np.array([len(each) for each in self._bytes or ()], dtype=np.int64)
        self._frames = tokenizer.num_special_tokens_to_add() > 0

    def segments(self, sequences: Sequence[Text]) -> list[Segment]:
        """Return the tokens of each text, and which of them are learned."""
        rendered = iter(self._rendered([text for text in sequences if isinstance(text, Rendered)]))
        pairs = iter(joined_pairs(self._tokenizer, [text for text in sequences if isinstance(text, Pair)]))
        raw = [text for text in sequences if isinstance(text, Raw)]
        starts = iter(self._found([text.text for text in raw], special=True)[0])
        completed = [text.completion for text in raw if text.completion is not None]
        completions = iter(self._found(completed, special=False)[0])

        def segment(text: Text) -> Segment:
            if isinstance(text, Rendered):
                return next(rendered)
            if isinstance(text, Pair):
                return next(pairs)
            start = np.array(next(starts))
            if text.completion is None:
                ids = self._with_end(start) if text.end else start
                return Segment(ids, _without_first(np.ones(len(ids), dtype=np.float32)))
            if len(start) and start[-1] == self._tokenizer.eos_token_id:
                start = start[:-1]
            rest = self._with_end(next(completions))
            weights = np.concatenate([np.zeros(len(start)), np.full(len(rest), text.weight)])
            return Segment(np.concatenate([start, rest]), _without_first(weights.astype(np.float32)))

        return [segment(text) for text in sequences]

    def _with_end(self, ids: np.ndarray) -> np.ndarray:
        end = self._tokenizer.eos_token_id
        if end is None or (len(ids) and ids[-1] == end):
            return ids
        return np.append(ids, np.int32(end))

    def _rendered(self, sequences: Sequence[Rendered]) -> list[Segment]:
        segments: list[Segment | None] = [None] * len(sequences)
        if self._bytes is not None:
            ids, exact = self._found([rendered.text for rendered in sequences], special=False)
            same = [
                at
                for at, rendered in enumerate(sequences)
                if not rendered.media and (exact[at] or self._text_of(ids[at]) == rendered.text.encode())
            ]
            made = self._by_bytes([sequences[at] for at in same], [ids[at] for at in same])
            for at, segment in zip(same, made, strict=True):
                segments[at] = segment
        others = [at for at, segment in enumerate(segments) if segment is None]
        encoded = self._with_offsets([sequences[at].text for at in others])
        for at, (found, offsets) in zip(others, encoded, strict=True):
            segments[at] = self._by_offsets(sequences[at], found, offsets)
        return [segment for segment in segments if segment is not None]

    def _text_of(self, ids: np.ndarray) -> bytes:
        """Return the bytes that tokens stand for, put together."""
        assert self._bytes is not None
        return b"".join(map(self._bytes.__getitem__, ids.tolist()))

    def _by_bytes(self, sequences: Sequence[Rendered], tokens: Sequence[np.ndarray]) -> list[Segment]:
        """Return all sequences end to end, in bytes: there, token i goes from `starts[i]` to `ends[i]`."""
        if not sequences:
            return []
        ids = np.concatenate(tokens)
        ends = np.cumsum(self._sizes[ids])
        starts = ends - self._sizes[ids]
        lasts_of = np.cumsum([len(each) for each in tokens])
        bases = np.append(0, np.append(0, ends)[lasts_of]).tolist()
        spans = [
            (at, base + start, base + end, span.weight)
            for at, (rendered, (base, after)) in enumerate(zip(sequences, pairwise(bases), strict=True))
            for span in rendered.spans
            for start, end in (_in_bytes(span, rendered.text, after - base),)
        ]
        begins = np.array([begin for _, begin, _, _ in spans], dtype=np.int64)
        firsts = np.searchsorted(ends, begins, side="right")
        lasts = np.searchsorted(starts, np.array([end for _, _, end, _ in spans], dtype=np.int64), side="left")
        run_across = np.append(starts, np.iinfo(np.int64).max)[firsts] < begins
        weights = np.zeros(len(ids), dtype=np.float32)
        for (_, _, _, weight), first, last in zip(spans, firsts.tolist(), lasts.tolist(), strict=True):
            weights[first:last] = weight
        crossed = {spans[number][0] for number in np.flatnonzero(run_across).tolist()}
        segments = []
        for at, (first, last) in enumerate(pairwise([0, *lasts_of.tolist()])):
            segment = Segment(ids[first:last].copy(), _without_first(weights[first:last].copy()))
            segments.append(self._cut(sequences[at], segment) if at in crossed else segment)
        return segments

    def _by_offsets(self, rendered: Rendered, ids: np.ndarray, offsets: np.ndarray) -> Segment:
        whole = _with_media(rendered, Segment(ids, _weights(offsets, rendered.spans)), offsets)
        if any(_crossed(offsets, span.start) for span in rendered.spans):
            return self._cut(rendered, whole)
        return whole

    def _cut(self, rendered: Rendered, whole: Segment) -> Segment:
        """Return a text of which a token runs across the start of an answer.

        At inference the prompt is tokenised by itself. So the text is cut there and tokenised in parts; only if the
        tokenizer would put a character of its own at the start of a part is it left whole, and the token that runs
        across is learned.
        """
        ((_, offsets),) = self._with_offsets([rendered.text])
        cuts = [span.start for span in rendered.spans if _crossed(offsets, span.start)]
        bounds = [0, *cuts, len(rendered.text)]
        parts = self._with_offsets([rendered.text[start:end] for start, end in pairwise(bounds)])
        in_parts = np.concatenate([ids for ids, _ in parts])
        if self._tokenizer.decode(in_parts) != self._tokenizer.decode(whole.input_ids):
            return whole
        moved = [offsets + start for (_, offsets), start in zip(parts, bounds, strict=False)]
        joined = np.concatenate(moved)
        return _with_media(rendered, Segment(in_parts, _weights(joined, rendered.spans)), joined)

    def _found(self, sequences: Sequence[str], *, special: bool) -> tuple[list[np.ndarray], list[bool]]:
        """Return the tokens of each text, and of which it is certain that they are the text's bytes.

        With `special`, they have those that the tokenizer begins or ends a text with.
        """
        if self._backend is None:
            each = [self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"] for text in sequences]
            return [np.array(ids, dtype=np.int32) for ids in each], [False] * len(sequences)
        quick = self._ascii_tokens if not (special and self._frames) else None
        found = [quick.ids(text) if quick is not None and text.isascii() else None for text in sequences]
        rest = [text for text, ids in zip(sequences, found, strict=True) if ids is None]
        with _one_thread(self._tokenizer):
            encoded = iter(self._backend.encode_batch_fast(rest, add_special_tokens=special) if rest else ())
        listed = [np.array(next(encoded).ids, dtype=np.int32) if ids is None else ids for ids in found]
        return listed, [ids is not None for ids in found]

    def _with_offsets(self, sequences: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        if self._backend is None:
            listed = [
                self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
                for text in sequences
            ]
            pairs = [(each["input_ids"], each["offset_mapping"]) for each in listed]
        else:
            with _one_thread(self._tokenizer):
                pairs = [
                    (each.ids, each.offsets) for each in self._backend.encode_batch(sequences, add_special_tokens=False)
                ]
        return [
            (np.array(ids, dtype=np.int32), np.array(offsets, dtype=np.int64).reshape(-1, 2)) for ids, offsets in pairs
        ]


def _is_plain(tokenizer: Any) -> bool:
    """Return whether calling the tokenizer does nothing more than the tokenizers library."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        kind.__call__ is PreTrainedTokenizerBase.__call__ and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
    )


@contextmanager
def _one_thread(tokenizer: Any) -> Iterator[None]:
    """Call the library as transformers does: nothing truncated, nothing padded, in one thread.

    Threads would not survive a fork; several processes tokenise instead.
    """
    backend = tokenizer.backend_tokenizer
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    if backend.encode_special_tokens != tokenizer.split_special_tokens:
        backend.encode_special_tokens = tokenizer.split_special_tokens
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _in_bytes(span: Span, text: str, size: int) -> tuple[int, int]:
    """Return where a span starts and ends in a text of `size` bytes."""
    if size == len(text):
        return span.start, span.end
    start = len(text[: span.start].encode())
    return start, start + len(text[span.start : span.end].encode())


def _crossed(offsets: np.ndarray, at: int) -> bool:
    return bool(((offsets[:, 0] < at) & (offsets[:, 1] > at)).any())


def _weights(offsets: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    weights = np.zeros(len(offsets), dtype=np.float32)
    starts, ends = offsets[:, 0], offsets[:, 1]
    for span in spans:
        weights[(starts < span.end) & (ends > span.start)] = span.weight
    return _without_first(weights)


def _with_media(rendered: Rendered, segment: Segment, offsets: np.ndarray) -> Segment:
    """Return the segment with its images, whose tokens are never learned."""
    if not rendered.media:
        return segment
    found = []
    for span in rendered.media:
        inside = np.flatnonzero((offsets[:, 0] < span.end) & (offsets[:, 1] > span.start))
        first, last = int(inside[0]), int(inside[-1])
        segment.weights[first : last + 1] = 0.0
        found.append(replace(span.media, start=first, length=last + 1 - first))
    return replace(segment, media=tuple(found))


def _without_first(weights: np.ndarray) -> np.ndarray:
    """Nothing predicts the first token."""
    weights[:1] = 0.0
    return weights
