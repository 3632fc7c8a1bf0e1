"""Samples as the model reads them, as the run wrote them down at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swift.untrusted import read_json_object
from swift_ui.looking.missing import NotThere, file_in
from swift_ui.looking.view import SAMPLES_FILE


def samples(folder: Path) -> dict[str, Any]:
    """Return the samples, what was left out of the data and why."""
    return read_json_object(file_in(folder, SAMPLES_FILE), NotThere)
