"""Numbers, durations and names formatted for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`4.2s`, `3m 05s`, `2h 07m`, `3d 04h`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {whole_seconds:02d}s" if minutes else f"{whole_seconds}s"


def count(number: float) -> str:
    """`812`, `4,096`, `1.2M`, `3.4B`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}"


def figure(value: object, digits: int = 4) -> str:
    """Return a measured value in so many significant digits, or a dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{digits}g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3g}"


def label(name: str) -> str:
    """Return a field's name as a heading: `trainable_weights` becomes `Trainable weights`."""
    spaced = name.replace("_", " ")
    return spaced[:1].upper() + spaced[1:]


def plural(number: int, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
