"""Curves drawn with Braille dots: two columns and four rows of dots in each character."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800


def curve(steps: Sequence[float], values: Sequence[float], width: int, height: int) -> list[str]:
    """Return a curve as lines of text, the highest value first; empty for fewer than two points."""
    if len(values) < 2 or width < 2:
        return []
    columns, rows = 2 * width, 4 * height
    low, high = min(values), max(values)
    span, first, last = (high - low) or 1.0, steps[0], steps[-1]
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for step, value in zip(steps, values, strict=True):
        column = round((step - first) / ((last - first) or 1) * (columns - 1))
        row = round((high - value) / span * (rows - 1))
        for x, y in _line(before or (column, row), (column, row)):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        before = column, row
    return ["".join(chr(_EMPTY + cell) for cell in line) for line in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots between two dots, both included."""
    across, down = end[0] - start[0], end[1] - start[1]
    count = max(abs(across), abs(down), 1)
    return [
        (start[0] + round(across * part / count), start[1] + round(down * part / count)) for part in range(count + 1)
    ]
