"""One run as the page shows it: facts, checkpoints, configuration and files, read from its folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from swift.errors import SwiftError
from swift.runs import ARGS_FILE, CONFIG_FILE, REPORT_FILE
from swift.untrusted import read_json_object, read_text
from swift_ui.looking.missing import NotThere, file_in
from swift_ui.looking.state import LOG_FILE, RunState

PLAN_FILE = "plan.json"
SAMPLES_FILE = "samples.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
_LARGEST = 1 << 18
"""Bytes of a configuration that is read: YAML is parsed slowly, and a file of swift's has some kilobytes."""
_MOST = 20_000
"""Values of a configuration that the page is told; a file of swift's has some hundreds."""
_MOST_ANSWERED = 1 << 22
"""Values of an answer that JSON cannot say as it is: looking at each of more would take minutes."""
_ASIDE = ("swift_version", "plugins", "environment")
"""Keys of `args.json` that are no settings."""
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})


def title_of(folder: Path) -> dict[str, str]:
    """Return how a run is called: its own name, and that of the model's folder around it."""
    return {"name": folder.name, "model": folder.parent.name}


def arguments(folder: Path) -> dict[str, Any]:
    """Return `args.json`; empty for a run that has not written it yet."""
    try:
        return read_json_object(file_in(folder, ARGS_FILE), NotThere)
    except NotThere:
        return {}


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by key, as the command line names them."""
    return {name: value for name, value in args.items() if name not in _ASIDE}


def short_facts(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the few facts by which people tell runs apart."""
    environment = args.get("environment")
    facts = {
        "model": str(args.get("model.path") or "").rstrip("/").rpartition("/")[2],
        "objective": args.get("objective.name"),
        "tuner": args.get("tuner.kind"),
        "backend": args.get("backend.name"),
        "processes": environment.get("processes") if isinstance(environment, dict) else None,
        "learning_rate": args.get("optim.learning_rate") or args.get("optim.lr"),
    }
    return {name: value for name, value in facts.items() if isinstance(value, str | int | float) and value != ""}


def run_view(folder: Path, state: RunState, summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return everything about a run but its curves."""
    args = arguments(folder)
    return {
        **title_of(folder),
        "folder": str(folder),
        "state": state.as_json(),
        "facts": short_facts(args),
        "version": args.get("swift_version"),
        "plugins": args.get("plugins") or {},
        "environment": args.get("environment") or {},
        "checkpoints": checkpoints(folder, summary),
        "plan": plan(folder),
        "summary": dict(summary) if summary else None,
        "has": {
            "report": (folder / REPORT_FILE).is_file(),
            "log": (folder / LOG_FILE).is_file(),
            "samples": (folder / SAMPLES_FILE).is_file(),
            "rounds": any(folder.glob("rollouts/round-*.jsonl")),
        },
        "pages": [REPORT_FILE] * (folder / REPORT_FILE).is_file() + pages(folder),
        "images": images(folder),
    }


def checkpoints(folder: Path, summary: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the whole checkpoints of a run, in order; `summary` says which is the best."""
    best = Path(str((summary or {}).get("best_model_checkpoint") or "-")).name
    found: list[dict[str, Any]] = []
    for path in folder.iterdir():
        match = _CHECKPOINT.fullmatch(path.name)
        if match and not path.is_symlink() and path.is_dir():
            found.append({"name": path.name, "path": str(path), "step": int(match[1]), "best": path.name == best})
    found.sort(key=lambda each: each["step"])
    if found:
        found[-1]["last"] = True
    return found


def plan(folder: Path) -> dict[str, Any] | None:
    """Return what the planner predicted, where the run was planned."""
    try:
        return read_json_object(file_in(folder, PLAN_FILE), NotThere)
    except SwiftError:
        return None


def configuration(folder: Path) -> dict[str, Any]:
    """Return `config.yaml` as text, and its settings by key."""
    text = read_text(file_in(folder, CONFIG_FILE), NotThere, limit=_LARGEST)
    try:
        sections = plain(yaml.safe_load(text), [_MOST])
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: dates that are none, and thousands of digits
        sections = {}
    keys: dict[str, Any] = {}
    for section, values in sections.items() if isinstance(sections, dict) else ():
        keys |= {f"{section}.{name}": value for name, value in values.items()} if isinstance(values, dict) else {}
    return {"text": text, "path": str(folder / CONFIG_FILE), "keys": keys}


def plain(value: Any, room: list[int]) -> Any:
    """Return a value as JSON can say it, NaN and infinities as null; raise `ValueError` beyond so many values.

    What aliases of YAML name is one value in memory, and one for each of them in JSON: a small file can stand for any
    number.
    """
    room[0] -= 1
    if room[0] < 0:
        raise ValueError("too many values")
    if isinstance(value, dict):
        return {plain(str(name), room): plain(each, room) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each, room) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()  # half of a surrogate pair is no text
    return value if value is None or isinstance(value, int) else str(value)


def as_json(content: Any) -> bytes:
    """Return what files of runs hold as JSON, which a page can read: without NaN, and without texts that are none."""
    try:
        return _compact(content)
    except ValueError:  # UnicodeEncodeError is one of them
        return _compact(plain(content, [_MOST_ANSWERED]))


def _compact(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def pages(folder: Path) -> list[str]:
    """Return the pages that were written into folders of the run, such as those of rounds."""
    return sorted(page.relative_to(folder).as_posix() for page in folder.glob("*/*.html") if page.is_file())


def images(folder: Path) -> list[str]:
    """Return the images that were drawn for the run."""
    found = (path for path in folder.glob("images/*") if path.suffix.lower() in _IMAGES and path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)[:200]
