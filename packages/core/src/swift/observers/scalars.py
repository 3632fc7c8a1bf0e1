"""A logged line as scalars: the names under which TensorBoard and experiment trackers have them."""

from __future__ import annotations

from swift.observers.lines import EVAL_PREFIX, Line


def scalars_of(line: Line) -> dict[str, float]:
    """Return the numbers of a line as `train/...` and `eval/...`."""
    return {
        _tag(name): value
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _tag(name: str) -> str:
    return f"eval/{name.removeprefix(EVAL_PREFIX)}" if name.startswith(EVAL_PREFIX) else f"train/{name}"
