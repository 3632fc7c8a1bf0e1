"""Pairs of completions of the same prompt: one that was chosen, and one that was rejected."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from swift.data.conversation import Conversation, Unusable, parse_json
from swift.data.encodings import ALL_MEDIA, ConversationEncoder, EncodedRow, Encoding, ReadRow
from swift.data.formats import MESSAGES, QUESTION, RowReader, Sample
from swift.data.samples import Encoded, Segment
from swift.data.text import Steps

_WORSE = "rejected"
"""Prefix of the columns of the rejected completion."""


class PreferenceEncoding(Encoding):
    """One sample of two segments: the chosen conversation and the rejected one."""

    name = "preference"
    segment_names = ("chosen", "rejected")
    values = ("margin",)
    media = ALL_MEDIA

    def read(self, row: RowReader) -> Sample:
        """Return the better and the worse conversation, which share the prompt."""
        better, worse = _pair(row)
        if better.messages == worse.messages:
            raise Unusable("chosen equals rejected", "the chosen and the rejected completion are equal")
        if better.messages[: better.last_round] != worse.messages[: worse.last_round]:
            raise Unusable("chosen and rejected have different prompts", "their prompts differ")
        values = {"margin": row.number("margin")} if row.has("margin") else {}
        return Sample(better, rejected=worse, values=values)

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return both conversations as one sample."""
        sample = row.sample
        assert sample.rejected is not None
        chosen = yield from encoder.segment(sample.conversation, row.location)
        rejected = yield from encoder.segment(sample.rejected, row.location)
        return compared((chosen, rejected), sample.values)


def compared(segments: tuple[Segment, ...], values: Mapping[str, float]) -> EncodedRow:
    """Return a sample whose segments are compared: each of them needs a token that counts, and counts it whole."""
    if not all(np.isin(segment.weights, (0.0, 1.0)).all() for segment in segments):
        raise Unusable("a fractional weight", "completions that are compared count or not: their weights are 0 or 1")
    if not all(segment.weights.any() for segment in segments):
        raise Unusable("nothing to learn", "no token of the completions has a loss")
    return EncodedRow((Encoded(0, segments, values=dict(values)),))


def _pair(row: RowReader) -> tuple[Conversation, Conversation]:
    if row.has("chosen") and row.has("rejected"):
        return _completed(row, "chosen"), _completed(row, "rejected")
    if row.has("chosen_messages") and row.has("rejected_messages"):
        chosen, rejected = row.value("chosen_messages"), row.value("rejected_messages")
        return row.messages(chosen), row.messages(rejected, media=_WORSE)
    if row.has("rejected_messages"):
        better = row.conversation()
        return better, row.messages(row.value("rejected_messages"), tools=list(better.tools), media=_WORSE)
    if row.has("rejected_response"):
        better = row.conversation()
        prompt = better.messages[: better.last_round]
        return better, row.completed(prompt, row.value("rejected_response"), tools=list(better.tools), media=_WORSE)
    if row.has("completions") and row.has("labels"):
        raise row.unknown("steps with labels, which --rlhf_type prm learns, and no rejected completion")
    raise row.unknown("no rejected completion (rejected_response, rejected_messages, or chosen and rejected)")


def _completed(row: RowReader, column: str) -> Conversation:
    """Read `chosen` or `rejected`: a whole conversation, the end of one, or a completion of the question columns."""
    completion, media = row.value(column), column if column == _WORSE else ""
    messages = row.take(MESSAGES) if _speaks_last(completion) else None
    if messages is not None:  # LLaMA-Factory's ranking: the conversation so far, and its two completions
        return row.completed(parse_json(messages, "messages"), completion, media=media)
    if isinstance(completion, str) or _speaks_last(completion):
        if (question := row.question()) is None:
            raise row.unknown(f"a completion ({column!r}) but no question (prompt, query or instruction)")
        return row.completed(question, completion, media=media)
    row.take(QUESTION)  # the conversation repeats it
    return row.messages(completion, media=media)


def _speaks_last(completion: object) -> bool:
    """Return whether it is one message, or begins with the assistant: a completion rather than a whole conversation."""
    if isinstance(completion, Mapping):
        return True
    first = completion[0] if isinstance(completion, list | tuple) and completion else None
    return isinstance(first, Mapping) and (first.get("role") or first.get("from")) in ("assistant", "gpt")
