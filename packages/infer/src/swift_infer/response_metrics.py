"""Metrics that compare responses with expected answers: accuracy, character error rate, IoU of bounding boxes.

A metric returns columns for the line of each response, and a summary of all lines, those of a resumed file included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.errors import DataError

BoundingBox = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Line = Mapping[str, Any]
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_BOUNDING_BOX = re.compile(rf"[\[(]{_NUMBER},{_NUMBER}(?:,|\),\s*\(){_NUMBER},{_NUMBER}[\])]")
"""[1, 2, 3, 4] or (1, 2, 3, 4), and Qwen-VL's (1,2),(3,4)."""
_HIT = 0.5


@dataclass(frozen=True)
class ResponseMetric:
    """A metric of responses and expected answers."""

    of_response: Callable[[str, str], dict[str, Any]]
    """Takes a response and the expected answer; returns columns of the response's line."""
    of_lines: Callable[[Iterable[Line]], dict[str, float]]
    """Takes all lines; returns the summary."""


def edits(one: str, other: str) -> int:
    """Return the edit distance (Levenshtein) of two strings."""
    before = list(range(len(other) + 1))
    for row, character in enumerate(one, start=1):
        now = [row]
        for column, against in enumerate(other, start=1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (character != against)))
        before = now
    return before[-1]


def bounding_boxes_in(text: str) -> list[BoundingBox]:
    """Return the bounding boxes in a string, in order: [left, top, right, bottom], or (left,top),(right,bottom)."""
    found = []
    for match in _BOUNDING_BOX.finditer(text):
        left, top, right, bottom = map(float, match.groups())
        found.append((left, top, right, bottom))
    return found


def overlap(one: BoundingBox, other: BoundingBox) -> float:
    """Return the intersection over union of two bounding boxes; 0 where both are empty."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    union = _area(one) + _area(other) - shared
    return shared / union if union else 0.0


def metric_of(name: str) -> ResponseMetric:
    """Return a metric by its name: 'accuracy', 'cer' or 'iou'."""
    return _METRICS[name]


def _columns(lines: Iterable[Line], **kinds: type) -> list[list[Any]]:
    """Return columns of lines; raise `DataError` for a line without one of these names and types."""
    table: list[list[Any]] = [[] for _ in kinds]
    for line in lines:
        for (name, kind), column in zip(kinds.items(), table, strict=True):
            if not isinstance(line.get(name), kind):
                raise DataError(
                    f"A line of the results has no valid {name!r}, so it cannot be evaluated.",
                    hint="Start over with --overwrite.",
                )
            column.append(line[name])
    return table


def _exact(response: str, expected: str) -> dict[str, Any]:
    return {"right": response.strip() == expected.strip()}


def _accuracy(lines: Iterable[Line]) -> dict[str, float]:
    (rights,) = _columns(lines, right=bool)
    return _of_rights(rights)


def _of_rights(rights: Sequence[bool]) -> dict[str, float]:
    return {"accuracy": sum(rights) / len(rights), "right": sum(rights), "questions": len(rights)}


def _characters(response: str, expected: str) -> dict[str, Any]:
    response, expected = response.strip(), expected.strip()
    return {**_exact(response, expected), "edits": edits(response, expected), "characters": len(expected)}


def _error_rate(lines: Iterable[Line]) -> dict[str, float]:
    """Return all edits over all characters, as usual for OCR: long answers weigh more."""
    wrong, characters, rights = _columns(lines, edits=int, characters=int, right=bool)
    if not sum(characters):
        raise DataError("--metric cer needs expected answers, but all are empty.", hint="Use --metric accuracy.")
    return {"cer": sum(wrong) / sum(characters), **_of_rights(rights)}


def _bounding_boxes(response: str, expected: str) -> dict[str, Any]:
    """Compare bounding boxes in order; a missing or surplus one has IoU 0."""
    wanted, found = bounding_boxes_in(expected), bounding_boxes_in(response)
    if not wanted:
        raise DataError(
            f"An expected answer has no bounding box: {expected[:80]!r}.",
            hint="Write bounding boxes as [left, top, right, bottom], or use another --metric.",
        )
    overlaps = [overlap(one, other) for one, other in zip(found, wanted, strict=False)]
    missed = abs(len(wanted) - len(found))
    return {"right": response.strip() == expected.strip(), "overlaps": [*overlaps, *[0.0] * missed]}


def _mean_overlap(lines: Iterable[Line]) -> dict[str, float]:
    (overlaps,) = _columns(lines, overlaps=list)
    every = [each for line in overlaps for each in line]
    hits = sum(each > _HIT for each in every)
    return {"iou": sum(every) / len(every), "iou_over_half": hits / len(every), "bounding_boxes": len(every)}


def _area(bounding_box: BoundingBox) -> float:
    return max(0.0, bounding_box[2] - bounding_box[0]) * max(0.0, bounding_box[3] - bounding_box[1])


_METRICS = {
    "accuracy": ResponseMetric(_exact, _accuracy),
    "cer": ResponseMetric(_characters, _error_rate),
    "iou": ResponseMetric(_bounding_boxes, _mean_overlap),
}
