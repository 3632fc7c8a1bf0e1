"""From characters to tokens: a text is tokenised once, and the stretches to learn are found by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from swift.data.samples import Segment
from swift.data.template import Rendered, Span
from swift.errors import ModelError


def check_offsets(tokenizer: Any) -> None:
    """Refuses tokenizers that cannot say which characters a token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"The tokenizer {type(tokenizer).__name__} cannot tell which characters its tokens stand for.",
            hint="Convert it to a tokenizer.json, which the tokenizers library reads.",
        )


def tokenise(tokenizer: Any, rendered: Rendered) -> Segment:
    """A rendered text as tokens; those of its spans are learned.

    At inference the prompt is tokenised by itself. Where a token of the text runs across the start of an answer the
    text is therefore cut there and tokenised in parts; only if the tokenizer would put a character of its own at the
    start of a part is it left whole, and the token that runs across is learned.
    """
    ids, offsets = _encode(tokenizer, rendered.text)
    cuts = [span.start for span in rendered.spans if _crossed(offsets, span.start)]
    if cuts:
        in_parts = _encode_parts(tokenizer, rendered.text, cuts)
        if tokenizer.decode(in_parts[0]) == tokenizer.decode(ids):
            ids, offsets = in_parts
    return Segment(ids, _weights(offsets, rendered.spans))


def tokenise_raw(tokenizer: Any, text: str) -> Segment:
    """Raw text with the tokenizer's own first token, if it has one, and the end-of-text token; all of it is learned."""
    ids = np.array(tokenizer(text, verbose=False)["input_ids"], dtype=np.int32)
    ids = _with_end(tokenizer, ids)
    return Segment(ids, _without_first(np.ones(len(ids), dtype=np.float32)))


def tokenise_completion(tokenizer: Any, prompt: str, completion: str, weight: float) -> Segment:
    """A prompt and its completion end to end, without a template; the completion and the end are learned."""
    start = np.array(tokenizer(prompt, verbose=False)["input_ids"], dtype=np.int32)
    if len(start) and start[-1] == tokenizer.eos_token_id:
        start = start[:-1]
    rest = _with_end(tokenizer, _encode(tokenizer, completion)[0])
    weights = np.concatenate([np.zeros(len(start)), np.full(len(rest), weight)])
    return Segment(np.concatenate([start, rest]), _without_first(weights.astype(np.float32)))


def _encode(tokenizer: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    return np.array(encoded["input_ids"], dtype=np.int32), offsets


def _encode_parts(tokenizer: Any, text: str, cuts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    bounds = [0, *cuts, len(text)]
    parts = [_encode(tokenizer, text[start:end]) for start, end in pairwise(bounds)]
    ids = np.concatenate([ids for ids, _ in parts])
    offsets = np.concatenate([offsets + start for (_, offsets), start in zip(parts, bounds, strict=False)])
    return ids, offsets


def _crossed(offsets: np.ndarray, at: int) -> bool:
    return bool(((offsets[:, 0] < at) & (offsets[:, 1] > at)).any())


def _weights(offsets: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    weights = np.zeros(len(offsets), dtype=np.float32)
    starts, ends = offsets[:, 0], offsets[:, 1]
    for span in spans:
        weights[(starts < span.end) & (ends > span.start)] = span.weight
    return _without_first(weights)


def _without_first(weights: np.ndarray) -> np.ndarray:
    """Nothing predicts the first token."""
    weights[:1] = 0.0
    return weights


def _with_end(tokenizer: Any, ids: np.ndarray) -> np.ndarray:
    end = tokenizer.eos_token_id
    if end is None or (len(ids) and ids[-1] == end):
        return ids
    return np.append(ids, np.int32(end))
