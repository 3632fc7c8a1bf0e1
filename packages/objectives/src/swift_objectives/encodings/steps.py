"""Answers in steps, each of which is marked right or wrong: a mark stands behind every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swift.data.conversation import Unusable, parse_json
from swift.data.encodings import ALL_MEDIA, ConversationEncoder, EncodedRow, Encoding, ReadRow
from swift.data.formats import RowReader, Sample
from swift.data.samples import Encoded, Segment
from swift.data.text import Rendered, Steps
from swift.untrusted import json_kind

STEPS = ("completions", "steps")
MARKS = ("labels", "label")
STEP_LABELS = "step_labels"
"""The name of what tokens hold: the label of the step that ends before them."""


@dataclass(frozen=True)
class StepSample(Sample):
    """A question, and the steps of a completion."""

    steps: tuple[str, ...] = ()
    labels: tuple[float, ...] = ()
    """How right each step is, from 0 to 1."""


class StepEncoding(Encoding):
    """One segment: the question, then each step with the separator behind it.

    What the model says of a step is said at the last token of its separator, which has seen nothing of the next step.
    As `weights` belong to the token that follows, the weight and the label of a step are those of the token after the
    separator; one more token stands behind the last. Steps and separators are tokenised by themselves, so that no
    token belongs to two of them. All of this is as in TRL's PRMTrainer.
    """

    name = "steps"
    columns = "prompt (or query, or messages that end with the question), completions (a list of steps) and labels"
    token_values = (STEP_LABELS,)
    media = ALL_MEDIA

    def __init__(self, separator: str, *, last_only: bool = False) -> None:
        self.separator = separator
        self.last_only = last_only
        """Whether only the last step of a completion is learned."""

    def read(self, row: RowReader) -> StepSample:
        """Return the question, the steps and their labels."""
        steps, marks = (_listed(row.take(names), names[0]) for names in (STEPS, MARKS))
        if steps is None or marks is None:
            missing = "steps (completions)" if steps is None else "labels of the steps (labels)"
            raise row.unknown(f"no {missing}")
        if len(steps) != len(marks):
            raise Unusable("malformed labels", f"{len(steps)} steps, and {len(marks)} labels")
        return StepSample(row.prompt(), steps=_step_strings(steps), labels=tuple(map(_label, marks)))

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the question and its steps as one segment, in which the end of each step counts."""
        sample = row.sample
        assert isinstance(sample, StepSample)
        prompt = yield from encoder.prompt(sample.conversation, row.location)
        *steps, separator = yield [Rendered(text, ()) for text in (*sample.steps, self.separator)]
        segment = encoder.fit(self._joined(prompt, steps, separator, sample.labels, encoder.tokenizer.eos_token_id))[0]
        if not segment.weights.any():
            raise Unusable("nothing to learn", "no step that is learned is within data.max_length")
        return EncodedRow((Encoded(0, (segment,)),))

    def _joined(
        self, prompt: Segment, steps: Sequence[Segment], separator: Segment, labels: Sequence[float], end: int | None
    ) -> Segment:
        pieces = [prompt.input_ids]
        for step in steps:
            pieces += [step.input_ids, separator.input_ids]
        behind = np.cumsum([len(piece) for piece in pieces])[2::2]  # the position after each separator
        after_all = pieces[-1][-1] if end is None else end  # no mark stands behind it, so no score sees it
        ids = np.concatenate([*pieces, [after_all]]).astype(np.int32)
        weights, marks = np.zeros(len(ids), dtype=np.float32), np.zeros(len(ids), dtype=np.float32)
        learned = slice(-1, None) if self.last_only else slice(None)
        weights[behind[learned]] = 1.0
        marks[behind] = labels
        return Segment(ids, weights, {STEP_LABELS: marks}, media=prompt.media)


def _listed(value: object, column: str) -> Sequence[Any] | None:
    if isinstance(value, str):
        value = parse_json(value, f"the column {column!r}")
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise Unusable(f"malformed {column}", f"the column {column!r} is {json_kind(value)}, not a list")
    if not value:
        raise Unusable("no steps", f"the column {column!r} is empty")
    return value


def _step_strings(steps: Sequence[Any]) -> tuple[str, ...]:
    for number, step in enumerate(steps, 1):
        if not isinstance(step, str) or not step.strip():
            raise Unusable("malformed step", f"step {number} is {step!r}, not a string")
    return tuple(steps)


def _label(label: object) -> float:
    if isinstance(label, bool | int | float) and 0 <= label <= 1:
        return float(label)
    raise Unusable("malformed labels", f"the label of a step is {label!r}; it should be true or false, or from 0 to 1")
