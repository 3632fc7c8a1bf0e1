"""Texts and conversations with a label: a class, several classes, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swift.data import SampleSet, joins_pairs
from swift.data.conversation import Conversation, Unusable, parse_json_list
from swift.data.encodings import ALL_MEDIA, ConversationEncoder, EncodedRow, Encoding, ReadRow
from swift.data.formats import COMPLETION, MESSAGES, QUESTION, RowReader, Sample, finite
from swift.data.samples import Encoded
from swift.data.text import Raw, Rendered, Span, Steps, Text
from swift.errors import DataError, ModelError
from swift.untrusted import shown
from swift_objectives.encodings.embedding import fitted

LABEL = ("label", "labels")
SINGLE_LABEL, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
_NAMED = 10
"""Labels that a remark names at most."""


class ClassificationEncoding(Encoding):
    """One sample of one segment: a whole text, or a whole conversation as the chat template writes it.

    A text is tokenised as a call of the tokenizer does it, so that the model scores the same tokens wherever it is
    loaded. A conversation may end with the user.
    """

    name = "classification"
    media = ALL_MEDIA
    columns = "text; messages; or query with or without response; each with label"

    def __init__(self, problem_type: str, names: Sequence[str]) -> None:
        self.problem_type = problem_type
        self.names = tuple(names)
        """Of the labels; empty strings where they have none."""
        one = problem_type == SINGLE_LABEL or (problem_type == REGRESSION and len(self.names) == 1)
        self.values = ("label",) if one else tuple(f"label_{index}" for index in range(len(self.names)))

    def read(self, row: RowReader) -> Sample:
        """Return the text or conversation, and its label as one number or one for each of the model's labels."""
        conversation = _conversation(row)
        label = row.take(LABEL)
        if label is None or label == "":
            raise Unusable("no label", "the column 'label' is missing or empty")
        try:
            read = {SINGLE_LABEL: self._single, MULTI_LABEL: self._multi, REGRESSION: self._numbers}[self.problem_type]
            numbers = read(label)
        except DataError as error:
            raise DataError(f"{row.location}: {error.message}", hint=error.hint) from None
        return Sample(conversation, values=dict(zip(self.values, numbers, strict=True)))

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the whole text as one segment, all of which counts."""
        (whole,) = yield [whole_text(row.sample.conversation, row.location, encoder)]
        segment = fitted(whole, encoder) if joins_pairs(encoder.tokenizer) else encoder.fit(whole)[0]
        if not segment.weights.any():
            raise Unusable("too short", "a text needs two tokens")
        return EncodedRow((Encoded(0, (segment,), values=dict(row.sample.values)),))

    def remarks(self, samples: SampleSet) -> Sequence[str]:
        """Return a line that names the labels without a text, which a model cannot learn."""
        if self.problem_type == REGRESSION:
            return ()
        if self.problem_type == SINGLE_LABEL:
            found = np.bincount(samples.column("label").astype(np.int64), minlength=len(self.names))
        else:
            found = np.array([np.count_nonzero(samples.column(name) > 0) for name in self.values])
        missing = [self.names[index] or str(index) for index in np.flatnonzero(found == 0)]
        if not missing:
            return ()
        named = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
        whose = "label that no text has" if len(missing) == 1 else "labels that no text has"
        return (f"The training set has {len(missing)} {whose}, which the model will not learn: {named}",)

    def _single(self, label: Any) -> list[float]:
        if isinstance(label, list | tuple):
            raise DataError(
                f"The row has the label {shown(repr(label))}, but this model assigns one class to each text.",
                hint="A model that may have several is trained with --problem_type multi_label_classification",
            )
        return [float(self._index(label))]

    def _multi(self, label: Any) -> list[float]:
        label = parse_json_list(label, "the column 'label'")
        given = list(label) if isinstance(label, list | tuple) else [label]
        if len(given) == len(self.names) and all(isinstance(each, bool | float) for each in given):
            numbers = [_number(each) for each in given]
            if not all(0 <= number <= 1 for number in numbers):
                raise Unusable("malformed label", f"the label is {label!r}; each of its numbers should be from 0 to 1")
            return numbers
        chosen = {self._index(each) for each in given}
        return [float(index in chosen) for index in range(len(self.names))]

    def _numbers(self, label: Any) -> list[float]:
        label = parse_json_list(label, "the column 'label'")
        numbers = [_number(each) for each in (label if isinstance(label, list | tuple) else [label])]
        if len(numbers) != len(self.names):
            raise Unusable("malformed label", f"{len(numbers)} numbers, and the model returns {len(self.names)}")
        return numbers

    def _index(self, label: Any) -> int:
        """Return the index of a label that is given by its name or its number."""
        if isinstance(label, str) and label in self.names and label:
            return self.names.index(label)
        try:
            index = int(label) if isinstance(label, str) else label
        except ValueError:
            raise self._unknown(str(label)) from None
        if isinstance(index, float) and index.is_integer():
            index = int(index)
        if not isinstance(index, int):
            raise Unusable("malformed label", f"the label is {label!r}, neither an integer nor a name")
        if not 0 <= index < len(self.names):
            raise Unusable("label out of range", f"the label is {label!r}, and labels are 0 to {len(self.names) - 1}")
        return index

    def _unknown(self, label: str) -> Exception:
        if not any(self.names):
            return DataError(
                f"The row has the label {shown(repr(label))}, and the labels have no names.",
                hint=f"Name them in the order of the model's scores: --labels {label},...",
            )
        return Unusable("unknown label", f"the label is {label!r}, and labels are {', '.join(self.names)}")


def _conversation(row: RowReader) -> Conversation:
    """Return the conversation of the row, which may end with the user, or its text."""
    if row.has(*MESSAGES):
        return row.messages(row.take(MESSAGES), completed=False)
    if row.has(*QUESTION) and not row.has(*COMPLETION):
        return row.messages(row.question(), completed=False)
    conversation = row.conversation()
    if conversation.plain and not conversation.messages[-1]["content"].strip():
        raise Unusable("empty text", "the text is empty")
    return conversation


def whole_text(conversation: Conversation, location: str, encoder: ConversationEncoder) -> Text:
    """Return what is tokenised of a text, or of a conversation as the chat template writes it; all of it counts."""
    if conversation.plain and (len(conversation.messages) == 1 or encoder.template is None):
        return Raw("".join(message["content"] for message in conversation.messages), end=False)
    if encoder.template is None:
        raise ModelError(
            f"{location}: this is a conversation, and the tokenizer has no chat template to write it with.",
            hint="Give one with --model.chat_template FILE, or put the text into a column 'text'.",
        )
    conversation = encoder.with_images(conversation)
    text = encoder.template.render(encoder.without_learning(conversation), (), location)[0].text
    return encoder.with_media(Rendered(text, (Span(0, len(text), 1.0),)), conversation)


def _number(value: Any) -> float:
    if (number := finite(value)) is None:
        raise Unusable("malformed label", f"the label is {value!r}, not a finite number")
    return number
