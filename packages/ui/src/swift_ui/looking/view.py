"""Facts, checkpoints, configuration and files of a run, for the page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from swift.errors import SwiftError
from swift.train import ARGS_FILE, CONFIG_FILE, REPORT_FILE
from swift.untrusted import read_json_object, read_text
from swift_ui.looking.index import NotFound, file_in
from swift_ui.looking.state import LOG_FILE, RunState

PLAN_FILE = "plan.json"
SAMPLES_FILE = "samples.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
_LARGEST = 1 << 18
"""Maximum size of a configuration: YAML is slow to parse, and swift writes some kilobytes."""
_MOST = 20_000
"""Maximum number of values of a configuration; swift writes some hundreds."""
_MOST_SENT = 1 << 22
"""Maximum number of values of a response with invalid JSON: checking more would take minutes."""
_ASIDE = ("swift_version", "plugins", "environment")
"""Keys of `args.json` that are not settings."""
_NOT_COMPARED = frozenset({"logging.output", "logging.run_name", "checkpoint.resume"})
"""Settings that locate a run, without effect on its results."""
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})


def title_of(folder: Path) -> dict[str, str]:
    """Return the name of a run, and of its model's folder."""
    return {"name": folder.name, "model": folder.parent.name}


def arguments(folder: Path) -> dict[str, Any]:
    """Return `args.json`; empty if the run has not written it yet."""
    try:
        return read_json_object(file_in(folder, ARGS_FILE), NotFound)
    except NotFound:
        return {}


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by key."""
    return {name: value for name, value in args.items() if name not in _ASIDE}


def short_facts(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the few facts that distinguish runs."""
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
    """Return everything about a run except its curves."""
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
    """Return the checkpoints of a run in order; `summary` names the best."""
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
    """Return the planner's prediction; None if the run was not planned."""
    try:
        return read_json_object(file_in(folder, PLAN_FILE), NotFound)
    except SwiftError:
        return None


def configuration(folder: Path) -> dict[str, Any]:
    """Return `config.yaml` as text, and its settings by key."""
    text = read_text(file_in(folder, CONFIG_FILE), NotFound, limit=_LARGEST)
    try:
        sections = plain(yaml.safe_load(text), [_MOST])
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: invalid dates, thousands of digits
        sections = {}
    keys: dict[str, Any] = {}
    for section, values in sections.items() if isinstance(sections, dict) else ():
        keys |= {f"{section}.{name}": value for name, value in values.items()} if isinstance(values, dict) else {}
    return {"text": text, "path": str(folder / CONFIG_FILE), "keys": keys}


def plain(value: Any, room: list[int]) -> Any:
    """Return a value as valid JSON, NaN and infinities as null; raise `ValueError` for more than `room` values.

    JSON repeats values that YAML's aliases share, so that a small file can have any number of values.
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
        return value.encode(errors="backslashreplace").decode()  # unpaired surrogates are invalid
    return value if value is None or isinstance(value, int) else str(value)


def as_json(content: Any) -> bytes:
    """Return content of run files as valid JSON, without NaN and unpaired surrogates."""
    try:
        return _compact(content)
    except ValueError:  # UnicodeEncodeError is one of them
        return _compact(plain(content, [_MOST_SENT]))


def _compact(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def samples(folder: Path) -> dict[str, Any]:
    """Return the first samples, and which samples were skipped and why."""
    return read_json_object(file_in(folder, SAMPLES_FILE), NotFound)


def pages(folder: Path) -> list[str]:
    """Return the HTML pages in folders of the run, such as audit pages of rounds."""
    return sorted(page.relative_to(folder).as_posix() for page in folder.glob("*/*.html") if page.is_file())


def images(folder: Path) -> list[str]:
    """Return the images of the run."""
    found = (path for path in folder.glob("images/*") if path.suffix.lower() in _IMAGES and path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)[:200]


def differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys whose values are not the same in all runs, with a value for each run (None if missing)."""
    names = sorted({name for each in settings for name in each} - _NOT_COMPARED)
    rows = ({"key": name, "values": [each.get(name) for each in settings]} for name in names)
    return [row for row in rows if any(value != row["values"][0] for value in row["values"][1:])]
