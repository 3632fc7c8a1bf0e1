"""Checks of the folder an exporter wrote, before anything is compared: not empty, complete, and with weights."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from swift.checkpoint.checksums import write_json
from swift.checkpoint.manifest import installed_versions
from swift.errors import ExportError
from swift.export.destination import VERIFICATION

_OTHER_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "*processor_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "quantisation.json",
    "modules.json",
    "config_sentence_transformers.json",
    VERIFICATION,
    "*.index.json",
    "*.py",
    "*.md",
    ".*",
)
"""Files that make weights a model, and hold none."""


def check_written(folder: Path, exporter: str) -> None:
    """Raise `ExportError` where an exporter wrote nothing, no weights, or less than its own lists of files name."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    if not any(path.stat().st_size for path in files):
        raise _failure(exporter, "wrote nothing")
    for index in sorted(path for path in files if path.name.endswith(".index.json")):
        for name in _listed(index, exporter):
            if Path(name).name != name:
                raise _failure(exporter, f"lists {name!r} in {index.name}, which is not the name of a file next to it")
            if not (index.parent / name).is_file():
                raise _failure(exporter, f"lists {name} in {index.name}, and did not write it")
    weights = [path for path in files if not any(fnmatch(path.name, pattern) for pattern in _OTHER_FILES)]
    if not weights:
        raise _failure(exporter, f"wrote no weights, only {', '.join(sorted({path.name for path in files})[:6])}")
    empty = [path for path in weights if not path.stat().st_size]
    if empty:
        raise _failure(exporter, f"left {empty[0].relative_to(folder)} empty")


def note_unverified(folder: Path, exporter: str, reason: str) -> None:
    """Write a report that the export was not compared; a report of the exporter is kept in it."""
    path = folder / VERIFICATION
    report: dict[str, Any] = {
        "verified": False,
        "reason": reason,
        "exporter": exporter,
        "versions": installed_versions(),
    }
    if path.is_file():
        report["report_of_the_exporter"] = path.read_text(encoding="utf-8", errors="replace")
    write_json(path, report)


def _listed(index: Path, exporter: str) -> list[str]:
    """Return the files that an index of shards names."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _failure(exporter, f"wrote {index.name}, which is not JSON ({error})") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _failure(exporter, f"wrote {index.name} without a weight_map from names to files")
    return sorted(set(weight_map.values()))


def _failure(exporter: str, what: str) -> ExportError:
    return ExportError(f"The {exporter} {what}. Nothing was exported.", hint="Report it to the exporter's authors.")
