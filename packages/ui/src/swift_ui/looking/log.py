"""Reader of a run's `log.txt`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from swift.untrusted import open_regular
from swift_ui.looking.index import NotFound, file_in
from swift_ui.looking.state import LOG_FILE

PART = 1 << 16
"""Bytes to send at a time."""
_MARKS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07\x1b]*\x07")
_REWRITTEN = re.compile(r"^.*\r(?!\n)", re.M)


def log_part(folder: Path, after: int | None = None, before: int | None = None) -> dict[str, Any]:
    """Return a part of the log: its end, the part after offset `after`, or the part before offset `before`.

    Colors and overwritten lines are removed. `start` and `end` are the offsets of the part.
    """
    with open_regular(file_in(folder, LOG_FILE), NotFound) as file:
        size = file.seek(0, 2)
        start = max(0, size - PART)
        end = size
        if after is not None and after <= size:
            start, end = after, min(size, after + PART)
        elif before is not None:
            end = min(before, size)
            start = max(0, end - PART)
        file.seek(start)
        part = file.read(end - start)
    if start and after is None:
        cut = part.find(b"\n") + 1
        part, start = part[cut:], start + cut
    whole = part.rfind(b"\n") + 1 or len(part)
    text = part[:whole].decode("utf-8", errors="replace")
    return {"text": _REWRITTEN.sub("", _MARKS.sub("", text)), "start": start, "end": start + whole, "size": size}
