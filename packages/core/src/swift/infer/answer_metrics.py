"""How answers are compared with expected ones: exactly, letter by letter, or box by box.

A metric makes columns of each answer's line, and a summary of all lines: lines that an earlier session wrote count too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.errors import DataError

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Line = Mapping[str, Any]
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_BOX = re.compile(rf"[\[(]{_NUMBER},{_NUMBER}(?:,|\),\s*\(){_NUMBER},{_NUMBER}[\])]")
"""[1, 2, 3, 4] or (1, 2, 3, 4), and Qwen-VL's (1,2),(3,4)."""
_HIT = 0.5


@dataclass(frozen=True)
class AnswerMetric:
    """One way to compare answers with expected ones."""

    of_answer: Callable[[str, str], dict[str, Any]]
    """Given the answer and what was expected, returns columns of the answer's line."""
    of_lines: Callable[[Iterable[Line]], dict[str, float]]
    """Given the columns of all lines, returns the summary."""


def edits(one: str, other: str) -> int:
    """Return how few characters must be put in, taken out or replaced to make one text of the other."""
    before = list(range(len(other) + 1))
    for row, character in enumerate(one, start=1):
        now = [row]
        for column, against in enumerate(other, start=1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (character != against)))
        before = now
    return before[-1]


def bounding_boxes_in(text: str) -> list[Box]:
    """Return the boxes that a text names, in order: [left, top, right, bottom], or (left,top),(right,bottom)."""
    found = []
    for match in _BOX.finditer(text):
        left, top, right, bottom = map(float, match.groups())
        found.append((left, top, right, bottom))
    return found


def overlap(one: Box, other: Box) -> float:
    """Return the intersection of two boxes over their union; 0 where both are empty."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    union = _area(one) + _area(other) - shared
    return shared / union if union else 0.0


def metric_of(name: str) -> AnswerMetric:
    """Return a metric by its name: 'accuracy', 'cer' or 'iou'."""
    return _METRICS[name]


def _columns(lines: Iterable[Line], **kinds: type) -> list[list[Any]]:
    """Return columns of lines by name, of which each line must have all, of these types."""
    table: list[list[Any]] = [[] for _ in kinds]
    for line in lines:
        for (name, kind), column in zip(kinds.items(), table, strict=True):
            if not isinstance(line.get(name), kind):
                raise DataError(
                    f"A line of the results has no {name!r}, and does not say whether its answer is right.",
                    hint="Start over: --overwrite",
                )
            column.append(line[name])
    return table


def _exact(answer: str, expected: str) -> dict[str, Any]:
    return {"right": answer.strip() == expected.strip()}


def _accuracy(lines: Iterable[Line]) -> dict[str, float]:
    (rights,) = _columns(lines, right=bool)
    return _of_rights(rights)


def _of_rights(rights: Sequence[bool]) -> dict[str, float]:
    return {"accuracy": sum(rights) / len(rights), "right": sum(rights), "questions": len(rights)}


def _characters(answer: str, expected: str) -> dict[str, Any]:
    answer, expected = answer.strip(), expected.strip()
    return {**_exact(answer, expected), "edits": edits(answer, expected), "characters": len(expected)}


def _error_rate(lines: Iterable[Line]) -> dict[str, float]:
    """Return all edits over all characters, as OCR is measured: long texts count for more."""
    wrong, characters, rights = _columns(lines, edits=int, characters=int, right=bool)
    if not sum(characters):
        raise DataError("No expected answer has a character.", hint="Leave --metric cer out.")
    return {"cer": sum(wrong) / sum(characters), **_of_rights(rights)}


def _boxes(answer: str, expected: str) -> dict[str, Any]:
    """Compare boxes in their order; one that is missing or too many overlaps with nothing."""
    wanted, found = bounding_boxes_in(expected), bounding_boxes_in(answer)
    if not wanted:
        raise DataError(
            f"An expected answer names no box: {expected[:80]!r}.",
            hint="Write boxes as [left, top, right, bottom], or leave --metric iou out.",
        )
    overlaps = [overlap(one, other) for one, other in zip(found, wanted, strict=False)]
    missed = abs(len(wanted) - len(found))
    return {"right": answer.strip() == expected.strip(), "overlaps": [*overlaps, *[0.0] * missed]}


def _mean_overlap(lines: Iterable[Line]) -> dict[str, float]:
    (overlaps,) = _columns(lines, overlaps=list)
    every = [each for line in overlaps for each in line]
    hits = sum(each > _HIT for each in every)
    return {"iou": sum(every) / len(every), "iou_over_half": hits / len(every), "boxes": len(every)}


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


_METRICS = {
    "accuracy": AnswerMetric(_exact, _accuracy),
    "cer": AnswerMetric(_characters, _error_rate),
    "iou": AnswerMetric(_boxes, _mean_overlap),
}
